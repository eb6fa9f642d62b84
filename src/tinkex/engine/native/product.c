/* A matrix product of a few rows, with all sums in registers. */
#include "common.h"

/* out[i][0..vectors) (+)= sum over k of a[i][k] * b[k][...]. `rows` and `vectors` are compile-time
 * constants at every call, so that all sums stay in registers. */
INLINE void tile(const int rows, const int vectors, const float *const *a, long depth,
                 const float *b, long stride, float *const *out, long column, int adds) {
    vec sum[TILE_ROWS][TILE_VECTORS];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++)
            sum[i][j] = adds ? load(out[i] + column + j * LANES) : broadcast(0.0f);
    const float *line = b + column;
    for (long k = 0; k < depth; k++, line += stride) {
        vec right[TILE_VECTORS];
        for (int j = 0; j < vectors; j++) right[j] = load(line + j * LANES);
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < vectors; j++) sum[i][j] += a[i][k] * right[j];
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++) store(out[i] + column + j * LANES, sum[i][j]);
}

INLINE void rows_product(const int rows, const float *const *a, long depth, const float *b,
                         long stride, long columns, float *const *out, int adds) {
    const int wide = TILE_VECTORS * LANES;
    long column = 0;
    for (; column + wide <= columns; column += wide)
        tile(rows, TILE_VECTORS, a, depth, b, stride, out, column, adds);
    for (; column + LANES <= columns; column += LANES)
        tile(rows, 1, a, depth, b, stride, out, column, adds);
    for (; column < columns; column++)
        for (int i = 0; i < rows; i++) {
            float sum = adds ? out[i][column] : 0.0f;
            for (long k = 0; k < depth; k++)
                sum = multiply_add(a[i][k], b[k * stride + column], sum);
            out[i][column] = sum;
        }
}

void product(long rows, const float *const *a, long depth, const float *b, long stride,
             long columns, float *const *out, int adds) {
    switch (rows) {
    case 1: rows_product(1, a, depth, b, stride, columns, out, adds); break;
    case 2: rows_product(2, a, depth, b, stride, columns, out, adds); break;
    case 3: rows_product(3, a, depth, b, stride, columns, out, adds); break;
    case 4: rows_product(4, a, depth, b, stride, columns, out, adds); break;
    case 5: rows_product(5, a, depth, b, stride, columns, out, adds); break;
    case 6: rows_product(6, a, depth, b, stride, columns, out, adds); break;
    }
}
