// Pool, batch norm, GELU and a sum in few passes over memory, forward and backward, for images with their channels last.
//
// norm_gelu.py compiles this file once for each type of the images:
//   BF16        1: bfloat16, 0: float
//
// Each image is summed up by itself, so that the result does not depend on the number of threads.
#include <cmath>
#include <cstdint>
#include <cstring>

#if BF16
typedef uint16_t stored;
static inline float load(stored v) {
    uint32_t bits = uint32_t(v) << 16;
    float f;
    std::memcpy(&f, &bits, 4);
    return f;
}
static inline stored store(float f) {  // to nearest, ties to even
    uint32_t bits;
    std::memcpy(&bits, &f, 4);
    uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    return f != f ? stored(0x7fc0) : stored(rounded);
}
// Integers compare as the numbers do, and much faster: minus infinity is 0, both zeros are one, and any NaN is above infinity.
static inline uint16_t order(stored v) {
    const int16_t sign = int16_t(int16_t(v) >> 15);
    const uint16_t ascending = uint16_t(v ^ (sign & 0x7fff));
    return uint16_t(uint16_t(ascending - sign) + 0x7f80);
}
static inline bool above(stored a, stored b) { return order(a) > order(b); }
#else
typedef float stored;
static inline float load(stored v) { return v; }
static inline stored store(float f) { return f; }
static inline bool above(stored a, stored b) { return (a > b) | (a != a); }
#endif

// exp of what is at most 0, to a few units in the last place; what is below -87 counts as -87.
static inline float exp_negative(float v) {
    v = v < -87.0f ? -87.0f : v;
    const float n = std::floor(v * 1.44269504f + 0.5f);
    const float r = (v - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.0f / 720;  // Taylor's polynomial on half an octave
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    const int32_t bits = (int32_t(n) + 127) << 23;
    float scale;
    std::memcpy(&scale, &bits, 4);
    return p * scale;
}

// The normal distribution function Phi and its density, Abramowitz and Stegun 7.1.26: to 1e-7.
static inline float normal(float u, float* density) {
    const float e = exp_negative(-0.5f * u * u);
    const float t = 1.0f / (1.0f + 0.3275911f * 0.70710678f * std::fabs(u));
    float q = 1.061405429f;
    q = q * t - 1.453152027f;
    q = q * t + 1.421413741f;
    q = q * t - 0.284496736f;
    q = q * t + 0.254829592f;
    q = 0.5f * q * t * e;
    *density = 0.398942280f * e;
    return u >= 0 ? 1.0f - q : q;
}

static inline float gelu_slope(float u) {
    float density;
    const float phi = normal(u, &density);
    return phi + u * density;
}

struct Shape {
    int64_t images, height, width, channels;  // of what comes in
    int64_t pooled;                           // 1: the largest of each 2x2 square; what is left over at an edge is dropped
};

// Of each channel: what goes into the GELU is u = weight * z + bias, with z = scale * p + shift of mean 0 and variance 1.
struct Norm {
    const float *scale, *shift, *weight, *bias;
};

static inline int64_t rows_of(const Shape& s) {
    return s.pooled ? (s.height / 2) * (s.width / 2) : s.height * s.width;
}

// Sums over the images, in one order.
static void add_up(const float* each, int64_t images, int64_t c, double* sums) {
    for (int64_t i = 0; i < c; ++i) sums[i] = 0;
    for (int64_t image = 0; image < images; ++image) {
#pragma omp simd
        for (int64_t i = 0; i < c; ++i) sums[i] += each[image * c + i];
    }
}

// p, the largest of four neighbours or a NaN, and which it was, the first of equals; then mean and variance of p in each channel,
// unless scratch is null. Scratch has 2 * images * channels elements, means and variances have one for each channel.
extern "C" void norm_gelu_moments(const Shape* shape, const stored* x, stored* p, uint8_t* index, float* scratch, double* means,
                                  double* variances, int threads) {
    const Shape s = *shape;
    float* image_means = scratch;
    float* image_squares = scratch ? scratch + s.images * s.channels : nullptr;
    const int64_t c = s.channels, rows = rows_of(s), line = s.width * c, out_width = s.width / 2;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t image = 0; image < s.images; ++image) {
        const stored* here = x + image * s.height * line;
        if (s.pooled) {
            stored* out = p + image * rows * c;
            uint8_t* which = index + image * rows * c;
            for (int64_t row = 0; row < rows; ++row) {
                const stored* corner = here + (row / out_width) * 2 * line + (row % out_width) * 2 * c;
#pragma omp simd simdlen(16)
                for (int64_t i = 0; i < c; ++i) {
                    stored best = corner[i];
                    uint8_t number = 0;
                    const stored second = corner[i + c], third = corner[i + line], fourth = corner[i + line + c];
                    number = above(second, best) ? 1 : number;
                    best = above(second, best) ? second : best;
                    number = above(third, best) ? 2 : number;
                    best = above(third, best) ? third : best;
                    number = above(fourth, best) ? 3 : number;
                    best = above(fourth, best) ? fourth : best;
                    out[row * c + i] = best;
                    which[row * c + i] = number;
                }
            }
            here = out;
        }
        if (!scratch) continue;
        float* mean = image_means + image * c;
        float* square = image_squares + image * c;
        for (int64_t i = 0; i < c; ++i) mean[i] = square[i] = 0;
        for (int64_t row = 0; row < rows; ++row) {
#pragma omp simd simdlen(16)
            for (int64_t i = 0; i < c; ++i) mean[i] += load(here[row * c + i]);
        }
        for (int64_t i = 0; i < c; ++i) mean[i] /= float(rows);
        for (int64_t row = 0; row < rows; ++row) {
#pragma omp simd simdlen(16)
            for (int64_t i = 0; i < c; ++i) {
                const float d = load(here[row * c + i]) - mean[i];
                square[i] += d * d;
            }
        }
    }
    if (!scratch) return;
    add_up(image_means, s.images, c, means);
    add_up(image_squares, s.images, c, variances);
    for (int64_t i = 0; i < c; ++i) means[i] /= double(s.images);
    for (int64_t image = 0; image < s.images; ++image) {
#pragma omp simd
        for (int64_t i = 0; i < c; ++i) {
            const double d = image_means[image * c + i] - means[i];
            variances[i] += double(rows) * d * d;
        }
    }
    for (int64_t i = 0; i < c; ++i) variances[i] /= double(rows * s.images);
}

// out = GELU(u) + residual, where there is one
extern "C" void norm_gelu_apply(const Shape* shape, const stored* p, const Norm* norm, const stored* residual, stored* out,
                                int threads) {
    const Shape s = *shape;
    const int64_t c = s.channels, rows = rows_of(s);
    const float *scale = norm->scale, *shift = norm->shift, *weight = norm->weight, *bias = norm->bias;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t image = 0; image < s.images; ++image) {
        for (int64_t row = image * rows; row < (image + 1) * rows; ++row) {
            const stored* here = p + row * c;
            const stored* other = residual + (residual ? row * c : 0);
            stored* there = out + row * c;
            float density;
            if (residual) {
#pragma omp simd simdlen(16) private(density)
                for (int64_t i = 0; i < c; ++i) {
                    const float u = weight[i] * (scale[i] * load(here[i]) + shift[i]) + bias[i];
                    there[i] = store(u * normal(u, &density) + load(other[i]));
                }
            } else {
#pragma omp simd simdlen(16) private(density)
                for (int64_t i = 0; i < c; ++i) {
                    const float u = weight[i] * (scale[i] * load(here[i]) + shift[i]) + bias[i];
                    there[i] = store(u * normal(u, &density));
                }
            }
        }
    }
}

// h, the gradient of u, and in each channel the sums of h and of h * z. Scratch as above.
extern "C" void norm_gelu_sums(const Shape* shape, const stored* p, const Norm* norm, const stored* grad, stored* inner,
                               float* scratch, double* sums, double* products, int threads) {
    const Shape s = *shape;
    float* image_sums = scratch;
    float* image_products = scratch + s.images * s.channels;
    const int64_t c = s.channels, rows = rows_of(s);
    const float *scale = norm->scale, *shift = norm->shift, *weight = norm->weight, *bias = norm->bias;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t image = 0; image < s.images; ++image) {
        float* sum = image_sums + image * c;
        float* product = image_products + image * c;
        for (int64_t i = 0; i < c; ++i) sum[i] = product[i] = 0;
        for (int64_t row = image * rows; row < (image + 1) * rows; ++row) {
            const stored* here = p + row * c;
            const stored* g = grad + row * c;
            stored* there = inner + row * c;
#pragma omp simd simdlen(16)
            for (int64_t i = 0; i < c; ++i) {
                const float z = scale[i] * load(here[i]) + shift[i];
                const float h = load(g[i]) * gelu_slope(weight[i] * z + bias[i]);
                there[i] = store(h);
                sum[i] += h;
                product[i] += h * z;
            }
        }
    }
    add_up(image_sums, s.images, c, sums);
    add_up(image_products, s.images, c, products);
}

// The gradient of p, weight * scale * (h - mean of h - z * mean of h * z), at the one of four that was the largest. Without a pool
// h and out may be the same memory.
extern "C" void norm_gelu_gradient(const Shape* shape, const stored* p, const uint8_t* index, const Norm* norm, const float* sums,
                                   const float* products, const stored* inner, stored* out, int threads) {
    const Shape s = *shape;
    const int64_t c = s.channels, rows = rows_of(s), line = s.width * c, out_width = s.width / 2;
    const float *scale = norm->scale, *shift = norm->shift, *weight = norm->weight;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t image = 0; image < s.images; ++image) {
        stored* there = out + image * s.height * line;
        if (s.pooled) {
            if (s.height % 2) std::memset(there + (s.height - 1) * line, 0, line * sizeof(stored));
            if (s.width % 2)
                for (int64_t y = 1; y <= s.height; ++y) std::memset(there + y * line - c, 0, c * sizeof(stored));
        }
        for (int64_t row = 0; row < rows; ++row) {
            const int64_t from = (image * rows + row) * c;
            const stored* here = p + from;
            const stored* h = inner + from;
            if (s.pooled) {
                const uint8_t* which = index + from;
                stored* corner = there + (row / out_width) * 2 * line + (row % out_width) * 2 * c;
#pragma omp simd simdlen(16)
                for (int64_t i = 0; i < c; ++i) {
                    const float z = scale[i] * load(here[i]) + shift[i];
                    const stored d = store(weight[i] * scale[i] * (load(h[i]) - sums[i] - z * products[i]));
                    corner[i] = which[i] == 0 ? d : stored(0);
                    corner[i + c] = which[i] == 1 ? d : stored(0);
                    corner[i + line] = which[i] == 2 ? d : stored(0);
                    corner[i + line + c] = which[i] == 3 ? d : stored(0);
                }
            } else {
#pragma omp simd simdlen(16)
                for (int64_t i = 0; i < c; ++i) {
                    const float z = scale[i] * load(here[i]) + shift[i];
                    there[row * c + i] = store(weight[i] * scale[i] * (load(h[i]) - sums[i] - z * products[i]));
                }
            }
        }
    }
}
