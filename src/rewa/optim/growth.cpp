// A step of torch's SGD, Adam or AdamW that is longer for large weights, over a list of tensors, in one pass over memory.
//
// growth.py compiles this file once for each setting, with the setting as macros:
//   REAL        type of the weights, their gradients and their state: float or double
//   CHUNK       elements that a thread takes at a time
//   ADAM        0: SGD (with MOMENTUM and NESTEROV); 1: Adam and AdamW (with AMSGRAD and DECOUPLED)
//   CUTTING     1 when zeros were cut and stay
//   NOTING      1 when the mean square of the gradient is to be noted
//
// reparam.grown (Adam) and reparam.grown_gradient (SGD) hold the formulas in their obvious form; the tests compare them.
#include <cmath>
#include <cstdint>

typedef REAL real;

constexpr real TINY = sizeof(real) == 4 ? real(1.17549435e-38f) : real(2.2250738585072014e-308);  // smallest normal

constexpr real LARGEST = sizeof(real) == 4 ? real(3.402823466e+38f) : real(1.7976931348623157e+308);

struct Tensor {  // one weight, its state and its setting; unused pointers are null
    int64_t numel;
    int64_t first_chunk;
    real* x;
    const real* grad;
    real *buffer, *exp_avg, *exp_avg_sq, *max_exp_avg_sq, *grad_square;
    double slope;                             // growth / size
    double most;                              // of what is added to a step, as a multiple of it
    double noted;                             // what the gradient counts in the mean of its square
    double grad_factor;                       // -1 to maximize, times 1 / grad_scale
    double decay;                             // lr * weight_decay when decoupled, else weight_decay; for SGD times 1 + growth
    double lr;                                // for Adam: lr / (1 - beta1^t)
    double momentum, damped;                  // damped: 1 - dampening, 1 at the first step
    double beta1, beta2, adam_eps;
    double sqrt_correction;                   // for Adam: sqrt(1 - beta2^t)
};

static void step_chunk(const Tensor& t, int64_t begin, int64_t end) {
    real* __restrict x_ptr = t.x;
    const real* __restrict grad_ptr = t.grad;
    real* __restrict buffer = t.buffer;
    real* __restrict exp_avg = t.exp_avg;
    real* __restrict exp_avg_sq = t.exp_avg_sq;
    real* __restrict max_exp_avg_sq = t.max_exp_avg_sq;
    real* __restrict grad_square = t.grad_square;
    const real slope = real(t.slope), most = real(t.most), grad_factor = real(t.grad_factor), noted = real(t.noted);
    const real decay = real(t.decay);
    const real lr = real(t.lr), momentum = real(t.momentum), damped = real(t.damped), beta2 = real(t.beta2);
    const real one_less_beta1 = real(1 - t.beta1), one_less_beta2 = real(1 - t.beta2);
    const real adam_eps = real(t.adam_eps), inv_sqrt_correction = real(1 / t.sqrt_correction);
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
        const real x = x_ptr[i];
#if CUTTING
        const bool cut = x == 0;
        real d = cut ? real(0) : grad_factor * grad_ptr[i];
#else
        real d = grad_factor * grad_ptr[i];
#endif
#if NOTING
        const real square = d * d;
        grad_square[i] += square <= LARGEST ? noted * (square - grad_square[i]) : real(0);  // a mean that is not finite would stay so
#endif
        const real more = slope * std::fabs(x);
        const real factor = real(1) + (more < most ? more : most);
#if !ADAM
        d *= factor;
#endif
#if !DECOUPLED
        d += decay * x;
#endif
#if ADAM
        const real m = exp_avg[i] + one_less_beta1 * (d - exp_avg[i]);
        const real v = beta2 * exp_avg_sq[i] + one_less_beta2 * d * d;
        exp_avg[i] = m;
        exp_avg_sq[i] = v;
#if AMSGRAD
        const real v_max = max_exp_avg_sq[i] > v ? max_exp_avg_sq[i] : v;
        max_exp_avg_sq[i] = v_max;
#else
        const real v_max = v;
#endif
        d = m / (std::sqrt(v_max) * inv_sqrt_correction + adam_eps);
#elif MOMENTUM
        const real b = momentum * buffer[i] + damped * d;
        buffer[i] = b;
        d = NESTEROV ? d + momentum * b : b;
#endif
        real x_new = x - (ADAM ? factor : real(1)) * lr * d;
#if DECOUPLED
        x_new -= decay * x;
#endif
#if CUTTING
        x_new = x_new == 0 ? TINY : x_new;  // by chance, not by a cut
        x_new = cut ? real(0) : x_new;
#endif
        x_ptr[i] = x_new;
    }
}

extern "C" void rewa_growth(const Tensor* tensors, int64_t count, int64_t chunks, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t chunk = 0; chunk < chunks; ++chunk) {
        int64_t low = 0, high = count - 1;  // the last tensor whose first chunk is not after this one
        while (low < high) {
            int64_t middle = (low + high + 1) / 2;
            if (tensors[middle].first_chunk <= chunk) low = middle;
            else high = middle - 1;
        }
        const Tensor& t = tensors[low];
        int64_t begin = (chunk - t.first_chunk) * CHUNK;
        step_chunk(t, begin, begin + CHUNK < t.numel ? begin + CHUNK : t.numel);
    }
}
