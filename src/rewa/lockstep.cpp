// Steps of ReWA for many linear models on the same rows, in one pass over the rows for all of them.
//
// lockstep.py compiles this file with REAL = float or double and calls steps(); it also holds the same steps in plain torch,
// and the tests compare the two.
//
// Each model is a column: its weights lie together, and a vector register holds neighbouring weights of one column. A tile of
// weights takes the gradient of this batch, its step, and its share of the next batch's predictions while it is in the cache.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>
#ifdef _OPENMP
#include <omp.h>
#endif

typedef REAL real;
constexpr int LANES = 64 / sizeof(real);
typedef real lanes __attribute__((vector_size(64)));
typedef real unaligned __attribute__((vector_size(64), aligned(sizeof(real))));
constexpr int WIDE = 4;                   // vectors and columns that the inner loops hold in registers at a time
constexpr int STRIDE = WIDE * LANES;      // the number of weights is a multiple of it
constexpr int TILE = 8 * STRIDE;
constexpr real TINY = std::numeric_limits<real>::min();

enum Form { TIED = 0, PAIR = 1, L1 = 2 };
enum Loss { SQUARED = 0, LOGISTIC = 1 };

extern "C" struct Column {
    int32_t form, loss, K, M;
    double lr, weight_decay, eps;
    real *u, *v;          // the state: y, or u and v of a pair; v is null otherwise
    const real* target;   // of every row
    const real* offset;   // of every row: predictions of the weights that were dropped, as they were then
    double faded;         // what decay has left of them since
    double bias;
    int32_t has_bias;
};

extern "C" struct Rows {
    const real* x;        // row-major, `stride` weights in a row
    int64_t stride;
    const int64_t* order;  // rows of one batch after the other
    int64_t batch;
};

static inline lanes load(const real* from) { return *reinterpret_cast<const unaligned*>(from); }

template <int N>
static inline real int_power(real a) {
    if constexpr (N == 0) return real(1);
    else if constexpr (N == 1) return a;
    else if constexpr (N % 2 == 0) return int_power<N / 2>(a * a);
    else return a * int_power<N / 2>(a * a);
}

// out = |y|^N over a tile.
typedef void (*Power)(const real* __restrict, real* __restrict, int);
template <int N>
static void power(const real* __restrict y, real* __restrict out, int length) {
    for (int j = 0; j < length; ++j) out[j] = int_power<N>(std::fabs(y[j]));
}
static const Power POWERS[] = {power<0>, power<1>, power<2>,  power<3>,  power<4>,  power<5>,  power<6>,  power<7>,
                               power<8>, power<9>, power<10>, power<11>, power<12>, power<13>, power<14>, power<15>};

// One step of y with the gradient g times `sign`; x is sign(y)|y|^K for the tied form, |y|^K for a part of a pair.
static void step_power(const Column& c, double lr, real sign, real* __restrict y, const real* __restrict g,
                       real* __restrict x, real* __restrict scale, int length) {
    const real shrink = real(1 - lr * c.weight_decay), rate = sign * real(lr), eps = real(c.eps);
    POWERS[c.M](y, scale, length);
    if (eps > 0) {
        POWERS[c.K - 1](y, x, length);
        for (int j = 0; j < length; ++j) scale[j] *= x[j] / (x[j] + eps);
    }
    for (int j = 0; j < length; ++j) y[j] = shrink * y[j] - rate * scale[j] * g[j];
    POWERS[c.K - 1](y, x, length);
    for (int j = 0; j < length; ++j) {
        x[j] *= y[j];
        x[j] = std::fabs(x[j]) <= TINY ? real(0) : x[j];
    }
}

// Plain SGD with the subgradient of the l1 penalty.
static void step_l1(const Column& c, double lr, real* __restrict y, const real* __restrict g, real* __restrict x, int length) {
    const real rate = real(lr), pull = real(lr * c.weight_decay);
    for (int j = 0; j < length; ++j) {
        real sign = y[j] > 0 ? pull : y[j] < 0 ? -pull : real(0);
        x[j] = y[j] = y[j] - rate * g[j] - sign;
    }
}

static void step_tile(const Column& c, double lr, int64_t at, const real* g, real* x, int length) {
    real scale[TILE], other[TILE];
    if (c.form == L1) return step_l1(c, lr, c.u + at, g, x, length);
    step_power(c, lr, real(1), c.u + at, g, x, scale, length);
    if (c.form == PAIR) {
        step_power(c, lr, real(-1), c.v + at, g, other, scale, length);
        for (int j = 0; j < length; ++j) x[j] = std::fabs(x[j]) - std::fabs(other[j]);
    }
}

static void weights_of_tile(const Column& c, int64_t at, real* x, int length) {
    if (c.form == L1) {
        memcpy(x, c.u + at, length * sizeof(real));
        return;
    }
    real other[TILE];
    POWERS[c.K - 1](c.u + at, x, length);
    for (int j = 0; j < length; ++j) x[j] *= c.u[at + j];
    if (c.form == PAIR) {
        POWERS[c.K](c.v + at, other, length);
        for (int j = 0; j < length; ++j) x[j] = std::fabs(x[j]) - other[j];
    }
    for (int j = 0; j < length; ++j) x[j] = std::fabs(x[j]) <= TINY ? real(0) : x[j];
}

// g[c][j] = sum over the rows of residual[c][row] * x[row][j], for C columns and one tile.
template <int C>
static void gradients(const real* const* rows, int64_t batch, int64_t at, int length, const real* residuals, real (*g)[TILE]) {
    for (int j = 0; j < length; j += STRIDE) {
        lanes sum[C][WIDE] = {};
        for (int64_t i = 0; i < batch; ++i) {
            const real* row = rows[i] + at + j;
            for (int w = 0; w < WIDE; ++w) {
                lanes x = load(row + w * LANES);
                for (int c = 0; c < C; ++c) sum[c][w] += x * residuals[c * batch + i];
            }
        }
        for (int c = 0; c < C; ++c)
            for (int w = 0; w < WIDE; ++w) memcpy(&g[c][j + w * LANES], &sum[c][w], sizeof(lanes));
    }
}

// sums[c][row] += x[row] * weights[c], lane by lane, for C columns, R rows and one tile.
template <int C, int R>
static void predictions(const real* const* rows, int64_t batch, int64_t at, int length, const real (*weights)[TILE],
                        lanes* sums) {
    lanes sum[C][R];
    for (int c = 0; c < C; ++c)
        for (int r = 0; r < R; ++r) sum[c][r] = sums[c * batch + r];
    for (int j = 0; j < length; j += LANES) {
        lanes w[C];
        for (int c = 0; c < C; ++c) w[c] = load(&weights[c][j]);
        for (int r = 0; r < R; ++r) {
            lanes x = load(rows[r] + at + j);
            for (int c = 0; c < C; ++c) sum[c][r] += x * w[c];
        }
    }
    for (int c = 0; c < C; ++c)
        for (int r = 0; r < R; ++r) sums[c * batch + r] = sum[c][r];
}

template <int C>
static void all_predictions(const real* const* rows, int64_t batch, int64_t at, int length, const real (*weights)[TILE],
                            lanes* sums) {
    int64_t i = 0;
    for (; i + 4 <= batch; i += 4) predictions<C, 4>(rows + i, batch, at, length, weights, sums + i);
    if (batch - i == 3) predictions<C, 3>(rows + i, batch, at, length, weights, sums + i);
    if (batch - i == 2) predictions<C, 2>(rows + i, batch, at, length, weights, sums + i);
    if (batch - i == 1) predictions<C, 1>(rows + i, batch, at, length, weights, sums + i);
}

// One tile of C columns: the step of this batch if there is one, the share of the next batch's predictions if there is one.
template <int C>
static void tile(const Column* columns, const double* lrs, const real* const* now, const real* const* next, int64_t batch,
                 int64_t at, int length, const real* residuals, lanes* sums) {
    alignas(64) real g[C][TILE];
    alignas(64) real x[C][TILE];
    if (now) {
        gradients<C>(now, batch, at, length, residuals, g);
        for (int c = 0; c < C; ++c) step_tile(columns[c], lrs[c], at, g[c], x[c], length);
    } else {
        for (int c = 0; c < C; ++c) weights_of_tile(columns[c], at, x[c], length);
    }
    if (next) all_predictions<C>(next, batch, at, length, x, sums);
}

static void point(const Rows& data, int64_t step, const real** rows) {
    for (int64_t i = 0; i < data.batch; ++i) rows[i] = data.x + data.order[step * data.batch + i] * data.stride;
}

// Trains `count` columns for `num_steps` batches; `schedule` holds the share of its lr that each step takes.
extern "C" void steps(Column* columns, int32_t count, const Rows* data, int64_t num_weights, int64_t num_steps,
                      const double* schedule, int32_t threads) {
    const int64_t batch = data->batch, tiles = (num_weights + TILE - 1) / TILE;
    std::vector<real> residuals(count * batch);
    std::vector<double> lrs(count);
    std::vector<const real*> now(batch), next(batch);
    std::vector<lanes> sums(int64_t(threads) * count * batch);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
#ifdef _OPENMP
        const int thread = omp_get_thread_num(), team = omp_get_num_threads();
#else
        const int thread = 0, team = 1;
#endif
        lanes* mine = sums.data() + int64_t(thread) * count * batch;
        const int64_t first = tiles * thread / team, last = tiles * (thread + 1) / team;
        for (int64_t step = -1; step < num_steps; ++step) {
            const real* const* rows = step >= 0 ? now.data() : nullptr;
            const real* const* rows_next = step + 1 < num_steps ? next.data() : nullptr;
#pragma omp single
            {
                if (rows_next) point(*data, step + 1, next.data());
            }
            memset(static_cast<void*>(mine), 0, sizeof(lanes) * count * batch);
            for (int64_t t = first; t < last; ++t) {
                const int64_t at = t * TILE;
                const int length = int(num_weights - at < TILE ? num_weights - at : TILE);
                for (int c = 0; c < count; c += WIDE) {
                    const real* r = residuals.data() + c * batch;
                    lanes* s = mine + c * batch;
                    const Column* cs = columns + c;
                    const double* l = lrs.data() + c;
                    switch (count - c) {
                        case 1: tile<1>(cs, l, rows, rows_next, batch, at, length, r, s); break;
                        case 2: tile<2>(cs, l, rows, rows_next, batch, at, length, r, s); break;
                        case 3: tile<3>(cs, l, rows, rows_next, batch, at, length, r, s); break;
                        default: tile<4>(cs, l, rows, rows_next, batch, at, length, r, s);
                    }
                }
            }
#pragma omp barrier
#pragma omp single
            {
                if (rows_next) {
                    for (int c = 0; c < count; ++c) {
                        Column& column = columns[c];
                        if (step >= 0) {  // the rest of the step just taken
                            const double shrink = 1 - lrs[c] * column.weight_decay;
                            double power = 1;
                            for (int k = 0; k < column.K; ++k) power *= shrink;
                            column.faded *= power;
                        }
                        lrs[c] = column.lr * schedule[step + 1];
                        double total = 0;
                        for (int64_t i = 0; i < batch; ++i) {
                            const int64_t row = data->order[(step + 1) * batch + i];
                            double prediction = column.bias + column.faded * column.offset[row];
                            for (int t = 0; t < team; ++t) {
                                lanes sum = sums[(int64_t(t) * count + c) * batch + i];
                                real folded = 0;
                                for (int lane = 0; lane < LANES; ++lane) folded += sum[lane];
                                prediction += folded;
                            }
                            const double target = column.target[row];
                            const double slope = column.loss == SQUARED ? 2 * (prediction - target)
                                                                        : 1 / (1 + std::exp(-prediction)) - target;
                            residuals[c * batch + i] = real(slope / batch);
                            total += slope;
                        }
                        if (column.has_bias) column.bias -= lrs[c] * total / batch;
                    }
                    std::swap(now, next);
                }
            }
        }
    }
    for (int c = 0; c < count; ++c) {
        const double shrink = 1 - lrs[c] * columns[c].weight_decay;
        for (int k = 0; k < columns[c].K; ++k) columns[c].faded *= shrink;
    }
}
