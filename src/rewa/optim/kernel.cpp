// One ReWA step over a list of tensors, in one pass over memory.
//
// fused.py compiles this file once for each setting, with the setting as macros, so that the powers become plain
// multiplications and the loop vectorizes:
//   REAL        type of y and of all arithmetic: float or double
//   STORE       type of x and g: 0 = REAL, 1 = bfloat16, 2 = float16 (1 and 2 keep y in memory, in float)
//   K_INT       the order when it is whole, else -1: then it comes with the tensor, for it may change at every step
//   M_INT       the adaptivity exponent, likewise
//   EPS         1 when eps > 0
//   CHUNK       elements that a thread takes at a time
//   ADAM        0: Algorithm 1 (with MOMENTUM and NESTEROV); 1: Algorithm 2 (with AMSGRAD)
//   DECOUPLED   1 when decay bypasses momentum and Adam, 0 when it is added to the gradient
//
// reparam.py holds the same formulas in their obvious form; the tests compare the two.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

typedef REAL real;
typedef std::conditional<sizeof(real) == 4, int32_t, int64_t>::type integer;

// a where the condition holds, else b. As bits: from a ?: GCC makes two copies of all that follows, and computes both.
static inline real select(bool condition, real a, real b) {
    const integer mask = -integer(condition);
    integer first, second;
    memcpy(&first, &a, sizeof(real));
    memcpy(&second, &b, sizeof(real));
    first = (first & mask) | (second & ~mask);
    memcpy(&a, &first, sizeof(real));
    return a;
}

#ifdef VECTOR_POW  // glibc's libmvec holds vector versions of pow; GCC uses them once told
extern "C" __attribute__((simd("notinbranch"))) float powf(float, float) noexcept;
extern "C" __attribute__((simd("notinbranch"))) double pow(double, double) noexcept;
#endif
static inline float real_pow(float a, float n) { return powf(a, n); }
static inline double real_pow(double a, double n) { return pow(a, n); }

#if STORE == 0
typedef real stored;
static inline real load(stored value) { return value; }
static inline stored store(real value) { return value; }
#elif STORE == 1
typedef uint16_t stored;
static inline real load(stored value) {
    uint32_t bits = uint32_t(value) << 16;
    float result;
    memcpy(&result, &bits, 4);
    return result;
}
static inline stored store(real value) {  // round to nearest, ties to even; NaN keeps a mantissa bit
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    return uint16_t(value != value ? (bits >> 16) | 0x40 : rounded);
}
#else
typedef _Float16 stored;
static inline real load(stored value) { return real(value); }
static inline stored store(real value) { return stored(value); }
#endif

template <int N>
static inline real int_power(real a) {
    if constexpr (N == 0) return real(1);
    else if constexpr (N == 1) return a;
    else if constexpr (N % 2 == 0) return int_power<N / 2>(a * a);
    else return a * int_power<N / 2>(a * a);
}

// a^n for a >= 0; WHOLE is n when n is a whole number, else -1.
template <int WHOLE>
static inline real power(real a, real n) {
    if constexpr (WHOLE >= 0) return int_power<WHOLE>(a);
    else return real_pow(a, n);
}

constexpr int K_LESS_1 = K_INT > 0 ? K_INT - 1 : -1;

constexpr real TINY = sizeof(real) == 4 ? real(1.17549435e-38f) : real(2.2250738585072014e-308);  // smallest normal
constexpr double SMALL_MOVE = sizeof(real) == 4 ? 0.0197 : 2.42e-5;  // as in reparam.py

// ((1 - r)^(-p) - 1) / r by its first four terms, coefficients by recursion at compile time.
template <int N>
static inline real series(real r, double p, double coefficient = 1) {
    coefficient *= (p + N - 1) / N;
    if constexpr (N == 4) return real(coefficient);
    else return real(coefficient) + r * series<N + 1>(r, p, coefficient);
}

// y = sign(x)|x|^(1/K).
static inline real to_y(real x, real K_inverse) {
    real a = std::fabs(x);
    if constexpr (K_INT == 1) return x;
    if constexpr (K_INT == 2) return std::copysign(std::sqrt(a), x);
    if constexpr (K_INT == 4) return std::copysign(std::sqrt(std::sqrt(a)), x);
    if constexpr (K_INT < 0) return std::copysign(real_pow(a, K_inverse), x);
    // z ~ a^(-1/K). The bits of a, read as an integer, are a line through log2(a) (off by 0.09 at most); a cubic brings
    // back the power of two. That leaves |1 - a z^K| below 0.04, and z is corrected by the series of (1 - r)^(-1/K).
    constexpr bool single = sizeof(real) == 4;
    constexpr double K = K_INT;
    constexpr int mantissa = single ? 23 : 52;
    constexpr double slope = -1.0 / K / double(int64_t(1) << mantissa), bias = ((single ? 127 : 1023) - 0.0430) / K;
    constexpr integer TINY_BITS = integer(1) << mantissa;
    integer bits;
    memcpy(&bits, &a, sizeof(real));
    bits = bits < TINY_BITS ? TINY_BITS : bits;  // below the normal range they say nothing of the logarithm
    memcpy(&a, &bits, sizeof(real));
    real log2_z = real(bits) * real(slope) + real(bias);
    real whole = std::floor(log2_z);
    real part = log2_z - whole;
    real z = real(0.99992783) + part * (real(0.6957771) + part * (real(0.22623319) + part * real(0.07790716)));
    integer shift = integer(whole) << mantissa;
    memcpy(&bits, &z, sizeof(real));
    bits += shift;
    memcpy(&z, &bits, sizeof(real));
    if constexpr (!single) {
        real r = real(1) - a * int_power<K_INT>(z);
        z += z * (r * series<1>(r, 1.0 / K));
    }
    // y = x z^(K-1) (1 - r)^(1/K - 1): no division, and x brings its sign and its zero.
    real z_power = int_power<K_LESS_1>(z);
    real r = real(1) - a * (z_power * z);
    real y = x * z_power;
    return y + y * (r * series<1>(r, 1.0 - 1.0 / K));
}

// x = sign(y)|y|^K, and flushed: a subnormal number is zero.
static inline real to_x(real y, real K_less_1) { return y * power<K_LESS_1>(std::fabs(y), K_less_1); }
static inline real flushed(real x) { return std::fabs(x) <= TINY ? real(0) : x; }

static inline real adaptive_scale(real a, real K_less_1, real M, real eps) {
    real scale = power<M_INT>(a, M);
#if EPS
    real derivative = power<K_LESS_1>(a, K_less_1);
    scale *= derivative / (derivative + eps);
#endif
    return scale;
}

struct Tensor {  // one parameter, its state and its setting; unused pointers are null
    int64_t numel;
    int64_t first_chunk;
    stored* x;
    const stored* grad;
    real* y;                                  // only when STORE is not 0
    real *buffer, *exp_avg, *exp_avg_sq, *max_exp_avg_sq;
    double K, M, eps;
    double grad_factor;                       // -1 to maximize, times 1 / grad_scale, times what match asks for
    double decay;                             // lr * weight_decay when decoupled, else weight_decay
    double lr;                                // for Adam: lr / (1 - beta1^t)
    double momentum;
    double beta1, beta2, adam_eps;
    double sqrt_correction;                   // for Adam: sqrt(1 - beta2^t)
};

static void step_chunk(const Tensor& t, int64_t begin, int64_t end) {
    stored* __restrict x_ptr = t.x;
    const stored* __restrict grad_ptr = t.grad;
    real* __restrict y_ptr = t.y;
    real* __restrict buffer = t.buffer;
    real* __restrict exp_avg = t.exp_avg;
    real* __restrict exp_avg_sq = t.exp_avg_sq;
    real* __restrict max_exp_avg_sq = t.max_exp_avg_sq;
    const real grad_factor = real(t.grad_factor), M = real(t.M);
    // A stabilizer that rounds to 0 must not make 0/0.
    const real eps = std::fmax(real(t.eps), TINY), adam_eps = std::fmax(real(t.adam_eps), TINY);
    const real K = real(t.K), K_inverse = real(1 / t.K), K_less_1 = real(t.K - 1);
    const real bound = real(SMALL_MOVE * SMALL_MOVE / (t.K * t.K));
    const real momentum = real(t.momentum), beta1 = real(t.beta1), beta2 = real(t.beta2);
    const real one_less_beta1 = real(1 - t.beta1), one_less_beta2 = real(1 - t.beta2);
    const real decay = real(t.decay), lr = real(t.lr), inv_sqrt_correction = real(1 / t.sqrt_correction);
#pragma omp simd
    for (int64_t i = begin; i < end; ++i) {
        const real x = load(x_ptr[i]);
        real y = to_y(x, K_inverse);
#if STORE
        // The copy in float counts only while it still stands for x: an edit of x from outside wins.
        const real kept = y_ptr[i];
        y = load(store(flushed(to_x(kept, K_less_1)))) == x ? kept : y;
#endif
        real d = adaptive_scale(std::fabs(y), K_less_1, M, eps) * (grad_factor * load(grad_ptr[i]));
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
#else
        if constexpr (!DECOUPLED) d += decay * y;
#if MOMENTUM
        const real b = momentum * buffer[i] + d;
        buffer[i] = b;
        d = NESTEROV ? d + momentum * b : b;
#endif
#endif
        // A step of zero leaves every bit of x.
        const real step = DECOUPLED ? decay * y + lr * d : lr * d;
#if STORE
        const real y_new = y - step;
        y_ptr[i] = y_new;
        x_ptr[i] = step == 0 ? x_ptr[i] : store(flushed(to_x(y_new, K_less_1)));
#else
        // A small step is added to x itself, with the slope in its middle: see reparam.moved.
        const bool small = K_INT != 1 && step * step < bound * (y * y);
        const real base = y - select(small, real(0.5), real(1)) * step;
        const real slope = power<K_LESS_1>(std::fabs(base), K_less_1);
        const real x_new = select(small, x, real(0)) + (small ? -K * step : base) * slope;
        x_ptr[i] = select((std::fabs(x_new) <= TINY) & (step != 0), real(0), x_new);
#endif
    }
}

extern "C" void rewa_step(const Tensor* tensors, int64_t count, int64_t chunks, int threads) {
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
