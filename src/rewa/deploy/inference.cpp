// Linear and convolution layers whose weights are mostly zero, in float32: only the nonzeros are touched.
//
// Both keep up to 64 outputs in registers while they run through the nonzeros of one row, and read the inputs of each as one
// run of memory. For a linear layer that takes the input transposed, examples side by side, block by block. For a convolution
// the padded planes are laid end to end, where moving by a filter tap is adding an offset.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

typedef float lanes __attribute__((vector_size(64), aligned(4)));  // 16 numbers, at any address
typedef float eight __attribute__((vector_size(32), aligned(4)));

static inline lanes all(float value) { return lanes{} + value; }
static inline lanes load(const float* at) { return *(const lanes*)at; }
static inline void store(float* at, lanes value) { *(lanes*)at = value; }

// to[c * to_stride + r] = from[r * from_stride + c] for 8 x 8 numbers, in registers.
static inline void transpose8(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
    eight a[8], b[8];
    for (int r = 0; r < 8; ++r) a[r] = *(const eight*)(from + r * from_stride);
    for (int r = 0; r < 8; r += 2) {
        b[r] = __builtin_shuffle(a[r], a[r + 1], (__attribute__((vector_size(32))) int){0, 8, 2, 10, 4, 12, 6, 14});
        b[r + 1] = __builtin_shuffle(a[r], a[r + 1], (__attribute__((vector_size(32))) int){1, 9, 3, 11, 5, 13, 7, 15});
    }
    for (int r = 0; r < 8; r += 4)
        for (int s = 0; s < 2; ++s) {
            a[r + s] = __builtin_shuffle(b[r + s], b[r + s + 2], (__attribute__((vector_size(32))) int){0, 1, 8, 9, 4, 5, 12, 13});
            a[r + s + 2] = __builtin_shuffle(b[r + s], b[r + s + 2], (__attribute__((vector_size(32))) int){2, 3, 10, 11, 6, 7, 14, 15});
        }
    for (int s = 0; s < 4; ++s) {
        eight low = __builtin_shuffle(a[s], a[s + 4], (__attribute__((vector_size(32))) int){0, 1, 2, 3, 8, 9, 10, 11});
        eight high = __builtin_shuffle(a[s], a[s + 4], (__attribute__((vector_size(32))) int){4, 5, 6, 7, 12, 13, 14, 15});
        *(eight*)(to + s * to_stride) = low;
        *(eight*)(to + (s + 4) * to_stride) = high;
    }
}

// A rows x columns block, any size. The outer loop runs over 8 rows, or over 8 columns if told: whichever of the two memories
// has the larger stride should see few of its rows at a time, for these share their places in the cache.
static void transpose(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to, int64_t to_stride,
                      bool by_columns) {
    int64_t whole_rows = rows & ~7, whole_columns = columns & ~7;
    auto block = [=](int64_t r, int64_t c) { transpose8(from + r * from_stride + c, from_stride, to + c * to_stride + r, to_stride); };
    if (by_columns)
        for (int64_t c = 0; c < whole_columns; c += 8)
            for (int64_t r = 0; r < whole_rows; r += 8) block(r, c);
    else
        for (int64_t r = 0; r < whole_rows; r += 8)
            for (int64_t c = 0; c < whole_columns; c += 8) block(r, c);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = r < whole_rows ? whole_columns : 0; c < columns; ++c) to[c * to_stride + r] = from[r * from_stride + c];
}

static float* scratch(size_t size) {  // one buffer a thread, kept between calls, from a multiple of 64 bytes on
    static thread_local std::vector<float> memory;
    if (memory.size() < size + 16) memory.resize(size + 16);
    return (float*)(((uintptr_t)memory.data() + 63) & ~uintptr_t(63));
}

struct Rows {  // the nonzeros of a weight, row by row
    const int32_t* start;
    const int32_t* place;  // column, or offset into the padded planes
    const float* value;
    const float* bias;  // or null
};

// The outputs first to last for 16 * BLOCKS examples, given the inputs transposed; rows of them count.
template <int BLOCKS>
static void linear_outputs(const float* turned, const Rows& w, int64_t first, int64_t last, int64_t rows, float* y, int64_t out) {
    constexpr int64_t WIDTH = 16 * BLOCKS, TILE = 64;
    constexpr int CHAINS = BLOCKS < 4 ? 4 : 2;  // sums that do not wait for each other
    float result[TILE * WIDTH];
    for (; first < last; first += TILE) {
        int64_t count = std::min(TILE, last - first);
        for (int64_t o = first; o < first + count; ++o) {
            lanes sum[CHAINS][BLOCKS] = {};
            auto add = [&](int chain, int32_t k) {
                const float* column = turned + int64_t(w.place[k]) * WIDTH;
#pragma GCC unroll 4
                for (int b = 0; b < BLOCKS; ++b) sum[chain][b] += w.value[k] * load(column + 16 * b);
            };
            int32_t k = w.start[o], end = w.start[o + 1];
            for (; k + CHAINS <= end; k += CHAINS)
#pragma GCC unroll 4
                for (int chain = 0; chain < CHAINS; ++chain) add(chain, k + chain);
            for (; k < end; ++k) add(0, k);
            for (int b = 0; b < BLOCKS; ++b) {
                lanes total = sum[0][b] + all(w.bias ? w.bias[o] : 0.0f);
                for (int chain = 1; chain < CHAINS; ++chain) total += sum[chain][b];
                store(result + (o - first) * WIDTH + 16 * b, total);
            }
        }
        transpose(result, WIDTH, count, rows, y + first, out, true);
    }
}

template <int BLOCKS>  // a batch of at most 16 * BLOCKS: the threads share its inputs and part its outputs
static void linear_small(const float* x, int64_t rows, int64_t in, int64_t out, const Rows& w, float* y, int threads) {
    constexpr int64_t WIDTH = 16 * BLOCKS, STEP = 64;
    float* turned = scratch(in * WIDTH);
    int64_t piece = (out / threads + 63) / 64 * 64 + 64;
    int64_t pieces = (out + piece - 1) / piece;
#pragma omp parallel num_threads(threads) if (w.start[out] > 4096)
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < in; i += STEP) {
            int64_t columns = std::min(STEP, in - i);
            if (rows < WIDTH) memset(turned + i * WIDTH, 0, columns * WIDTH * sizeof(float));
            transpose(x + i, in, rows, columns, turned + i * WIDTH, WIDTH, false);
        }
#pragma omp for schedule(static)
        for (int64_t p = 0; p < pieces; ++p)
            linear_outputs<BLOCKS>(turned, w, p * piece, std::min(out, (p + 1) * piece), rows, y, out);
    }
}

template <int BLOCKS>  // some of a large batch, by one thread
static void linear_block(const float* x, int64_t rows, int64_t in, int64_t out, const Rows& w, float* y) {
    constexpr int64_t WIDTH = 16 * BLOCKS;
    float* turned = scratch(in * WIDTH);
    if (rows < WIDTH) memset(turned, 0, in * WIDTH * sizeof(float));
    transpose(x, in, rows, in, turned, WIDTH, false);
    linear_outputs<BLOCKS>(turned, w, 0, out, rows, y, out);
}

extern "C" void sparse_linear(const float* x, int64_t batch, int64_t in, int64_t out, const int32_t* start, const int32_t* place,
                              const float* value, const float* bias, float* y, int threads) {
    Rows w = {start, place, value, bias};
    if (batch == 1) {
        // Below this many nonzeros waking another thread costs more than it does.
#pragma omp parallel for num_threads(threads) schedule(static) if (start[out] > 16384)
        for (int64_t o = 0; o < out; ++o) {
            float sum[4] = {bias ? bias[o] : 0.0f, 0, 0, 0};
            int32_t k = start[o], end = start[o + 1];
            for (; k + 4 <= end; k += 4)
                for (int i = 0; i < 4; ++i) sum[i] += value[k + i] * x[place[k + i]];
            for (; k < end; ++k) sum[0] += value[k] * x[place[k]];
            y[o] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
        }
        return;
    }
    if (batch <= 16) return linear_small<1>(x, batch, in, out, w, y, threads);
    if (batch <= 32) return linear_small<2>(x, batch, in, out, w, y, threads);
    if (batch <= 64) return linear_small<4>(x, batch, in, out, w, y, threads);
    // Wide blocks make the most of each nonzero; narrower ones leave no thread idle.
    int64_t width = batch >= 64 * threads ? 64 : 32;
#pragma omp parallel for num_threads(threads) schedule(dynamic)
    for (int64_t row = 0; row < batch; row += width) {
        auto run = width == 64 ? linear_block<4> : linear_block<2>;
        run(x + row * in, std::min(width, batch - row), in, out, w, y + row * out);
    }
}

struct Conv {  // two numbers: rows and columns
    int64_t batch, channels, size[2], pad[2], stride[2], grid[2], out, result[2], group;
};

// The padded planes of some examples end to end, channel after channel. A stride splits each plane into interleaved ones, in
// which the inputs of a tap are side by side again: plane (i, j) holds rows i, i + stride, ... and columns j, j + stride, ...
static void lay_planes(const Conv& c, const float* x, int64_t first, int64_t count, int64_t channel, float* planes) {
    int64_t image = c.grid[0] * c.grid[1], length = c.group * image;
    float* plane = planes + channel * c.stride[0] * c.stride[1] * length;
    memset(plane, 0, c.stride[0] * c.stride[1] * length * sizeof(float));
    for (int64_t n = 0; n < count; ++n) {
        const float* from = x + ((first + n) * c.channels + channel) * c.size[0] * c.size[1];
        for (int64_t r = 0; r < c.size[0]; ++r) {
            int64_t row = r + c.pad[0];
            float* to = plane + (row % c.stride[0]) * c.stride[1] * length + n * image + row / c.stride[0] * c.grid[1];
            if (c.stride[1] == 1) memcpy(to + c.pad[1], from + r * c.size[1], c.size[1] * sizeof(float));
            else
                for (int64_t s = 0; s < std::min(c.stride[1], c.size[1]); ++s) {  // every stride-th number, from s on
                    float* run = to + (s + c.pad[1]) % c.stride[1] * length + (s + c.pad[1]) / c.stride[1];
                    const float* source = from + r * c.size[1];
                    for (int64_t i = s; i < c.size[1]; i += c.stride[1]) *run++ = source[i];
                }
        }
    }
}

// All outputs of one channel for the examples that were laid out: the sum over its nonzeros of the planes moved by their places.
static void conv_row(const Conv& c, const float* planes, const Rows& w, int64_t o, int64_t first, int64_t count, float* line,
                     float* y) {
    constexpr int BLOCKS = 4;
    int64_t image = c.grid[0] * c.grid[1];
    int64_t span = (count - 1) * image + (c.result[0] - 1) * c.grid[1] + c.result[1];  // with the gaps between rows
    for (int64_t t = 0; t < span; t += 16 * BLOCKS) {
        lanes sum[BLOCKS];
        for (auto& s : sum) s = all(w.bias ? w.bias[o] : 0.0f);
        for (int32_t k = w.start[o]; k < w.start[o + 1]; ++k)
            for (int b = 0; b < BLOCKS; ++b) sum[b] += w.value[k] * load(planes + t + w.place[k] + 16 * b);
        for (int b = 0; b < BLOCKS; ++b) store(line + t + 16 * b, sum[b]);
    }
    for (int64_t n = 0; n < count; ++n)
        for (int64_t r = 0; r < c.result[0]; ++r)
            memcpy(y + (((first + n) * c.out + o) * c.result[0] + r) * c.result[1], line + n * image + r * c.grid[1],
                   c.result[1] * sizeof(float));
}

extern "C" void sparse_conv(const Conv* conv, const float* x, const int32_t* start, const int32_t* place, const float* value,
                            const float* bias, float* y, int threads) {
    const Conv& c = *conv;
    Rows w = {start, place, value, bias};
    constexpr int64_t SLACK = 64;  // a block may reach beyond the last plane and the last output
    int64_t length = c.group * c.grid[0] * c.grid[1], size = c.channels * c.stride[0] * c.stride[1] * length + SLACK;
    int64_t groups = (c.batch + c.group - 1) / c.group;
    if (groups >= threads) {  // each thread has planes of its own, small enough for its cache
#pragma omp parallel for num_threads(threads) schedule(dynamic)
        for (int64_t g = 0; g < groups; ++g) {
            int64_t first = g * c.group, count = std::min(c.group, c.batch - first);
            float* planes = scratch(size + length + SLACK);
            for (int64_t channel = 0; channel < c.channels; ++channel) lay_planes(c, x, first, count, channel, planes);
            for (int64_t o = 0; o < c.out; ++o) conv_row(c, planes, w, o, first, count, planes + size, y);
        }
        return;
    }
    for (int64_t g = 0; g < groups; ++g) {  // too few for that: all threads share one
        int64_t first = g * c.group, count = std::min(c.group, c.batch - first);
        static thread_local std::vector<float> shared;
        if (int64_t(shared.size()) < size) shared.resize(size);
        float* planes = shared.data();
#pragma omp parallel num_threads(threads)
        {
#pragma omp for schedule(static)
            for (int64_t channel = 0; channel < c.channels; ++channel) lay_planes(c, x, first, count, channel, planes);
#pragma omp for schedule(dynamic, 8)
            for (int64_t o = 0; o < c.out; ++o) conv_row(c, planes, w, o, first, count, scratch(length + SLACK), y);
        }
    }
}
