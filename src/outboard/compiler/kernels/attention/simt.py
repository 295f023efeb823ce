# SPDX-License-Identifier: Apache-2.0
"""Attention for SIMT devices: a work-item owns one query (or, for the gradients of keys and values, one key) and walks
the other side, the forward with a running maximum and sum. The backward recomputes probabilities from the logarithms of
the sums."""

from __future__ import annotations

FORWARD = r"""
#define BLOCK 4
OB_KERNEL void attend(OB_GLOBAL const IN_T* query, OB_GLOBAL const IN_T* key, OB_GLOBAL const IN_T* value,
                      OB_GLOBAL const MASK_T* mask, OB_GLOBAL IN_T* out, OB_GLOBAL LSE_T* lse PARAMETERS) {
  OB_FOR(piece, batches * heads * most_queries) {
    const long i = piece % most_queries, h = piece / most_queries % heads, b = piece / most_queries / heads;
    SEQUENCE(b)
    if (i >= queries) continue;
    ACC q[MAX_WIDTH], sum[MAX_WIDTH];
    for (long e = 0; e < width; ++e) q[e] = (ACC)IN_LOAD(query, Q_ROW(i) + e * q_e) * scale;
    for (long e = 0; e < value_width; ++e) sum[e] = 0;
    ACC most = -INFINITY, total = 0;
    const long end = causal && i + 1 < keys ? i + 1 : keys;
    for (long start = 0; start < end; start += BLOCK) {
      ACC score[BLOCK], peak = most;
      for (int j = 0; j < BLOCK; ++j) {
        ACC s = 0;
        if (start + j < end) {
          for (long e = 0; e < width; ++e) s += q[e] * (ACC)IN_LOAD(key, K_ROW(start + j) + e * k_e);
          s = MASKED(s, i, start + j);
        } else {
          s = -INFINITY;
        }
        score[j] = s;
        peak = fmax(peak, s);
      }
      /* A query that may look at nothing yet subtracts 0, not -inf. */
      const ACC base = peak == (ACC)-INFINITY ? (ACC)0 : peak, shrink = exp(most - base);
      most = peak;
      total *= shrink;
      for (int j = 0; j < BLOCK; ++j) {
        score[j] = exp(score[j] - base);
        total += score[j];
      }
      for (long e = 0; e < value_width; ++e) {
        ACC s = sum[e] * shrink;
        for (int j = 0; j < BLOCK && start + j < end; ++j)
          s += score[j] * (ACC)IN_LOAD(value, V_ROW(start + j) + e * v_e);
        sum[e] = s;
      }
    }
    const ACC inverse = total == 0 ? (ACC)0 : 1 / total;
    for (long e = 0; e < value_width; ++e) IN_STORE(out, OUT_ROW(i) + e * out_e, sum[e] * inverse);
    lse[LSE_PLACE(i)] = (LSE_T)(most + log(total));
  }
  CLEAR_OUTSIDE_QUERIES
}
"""

BACKWARD = r"""
/* The product of gradient and result of each query, summed. */
OB_KERNEL void sum_products(OB_GLOBAL const IN_T* grad, OB_GLOBAL const IN_T* out, OB_GLOBAL ACC* products PARAMETERS) {
  ALL_SEQUENCES
  OB_FOR(row, QUERY_ROWS) {
    const long i = row % queries, h = row / queries % heads, b = row / queries / heads;
    ACC total = 0;
    for (long e = 0; e < value_width; ++e)
      total += (ACC)IN_LOAD(grad, GRAD_ROW(i) + e * grad_e) * (ACC)IN_LOAD(out, OUT_ROW(i) + e * out_e);
    products[row] = total;
  }
}

#define PRODUCT_AT(i) products[QUERY_ROW(i)]
/* A masked pair has no part in anything, even where a query may look at nothing. */
#define PROBABILITY(score, i) ((score) == (ACC)-INFINITY ? (ACC)0 : exp((score) - LSE_AT(i)))

OB_KERNEL void query_gradient(OB_GLOBAL const IN_T* query, OB_GLOBAL const IN_T* key, OB_GLOBAL const IN_T* value,
                              OB_GLOBAL const MASK_T* mask, OB_GLOBAL const IN_T* grad, OB_GLOBAL const LSE_T* lse,
                              OB_GLOBAL const ACC* products, OB_GLOBAL IN_T* result PARAMETERS) {
  OB_FOR(piece, batches * heads * most_queries) {
    const long i = piece % most_queries, h = piece / most_queries % heads, b = piece / most_queries / heads;
    SEQUENCE(b)
    if (i >= queries) continue;
    ACC q[MAX_WIDTH], g[MAX_WIDTH], sum[MAX_WIDTH];
    for (long e = 0; e < width; ++e) {
      q[e] = (ACC)IN_LOAD(query, Q_ROW(i) + e * q_e) * scale;
      sum[e] = 0;
    }
    for (long e = 0; e < value_width; ++e) g[e] = (ACC)IN_LOAD(grad, GRAD_ROW(i) + e * grad_e);
    const long end = causal && i + 1 < keys ? i + 1 : keys;
    for (long j = 0; j < end; ++j) {
      ACC s = 0, change = 0;
      for (long e = 0; e < width; ++e) s += q[e] * (ACC)IN_LOAD(key, K_ROW(j) + e * k_e);
      for (long e = 0; e < value_width; ++e) change += g[e] * (ACC)IN_LOAD(value, V_ROW(j) + e * v_e);
      s = MASKED(s, i, j);
      const ACC slope = PROBABILITY(s, i) * (change - PRODUCT_AT(i)) * scale;
      for (long e = 0; e < width; ++e) sum[e] += slope * (ACC)IN_LOAD(key, K_ROW(j) + e * k_e);
    }
    for (long e = 0; e < width; ++e) IN_STORE(result, RESULT_ROW(i) + e * result_e, sum[e]);
  }
  CLEAR_OUTSIDE_RESULT
}

OB_KERNEL void key_gradients(OB_GLOBAL const IN_T* query, OB_GLOBAL const IN_T* key, OB_GLOBAL const IN_T* value,
                             OB_GLOBAL const MASK_T* mask, OB_GLOBAL const IN_T* grad, OB_GLOBAL const LSE_T* lse,
                             OB_GLOBAL const ACC* products, OB_GLOBAL IN_T* of_key, OB_GLOBAL IN_T* of_value
                             PARAMETERS) {
  const long key_heads = heads / share;
  OB_FOR(piece, batches * key_heads * most_keys) {
    const long j = piece % most_keys, key_head = piece / most_keys % key_heads, b = piece / most_keys / key_heads;
    SEQUENCE(b)
    if (j >= keys) continue;
    ACC k[MAX_WIDTH], v[MAX_WIDTH], k_sum[MAX_WIDTH], v_sum[MAX_WIDTH];
    {
      const long h = key_head * share;
      for (long e = 0; e < width; ++e) {
        k[e] = (ACC)IN_LOAD(key, K_ROW(j) + e * k_e);
        k_sum[e] = 0;
      }
      for (long e = 0; e < value_width; ++e) {
        v[e] = (ACC)IN_LOAD(value, V_ROW(j) + e * v_e);
        v_sum[e] = 0;
      }
    }
    for (long h = key_head * share; h < (key_head + 1) * share; ++h) {
      for (long i = causal ? j : 0; i < queries; ++i) {
        ACC s = 0, change = 0;
        for (long e = 0; e < width; ++e) s += k[e] * (ACC)IN_LOAD(query, Q_ROW(i) + e * q_e);
        for (long e = 0; e < value_width; ++e) change += v[e] * (ACC)IN_LOAD(grad, GRAD_ROW(i) + e * grad_e);
        s = MASKED(s * scale, i, j);
        const ACC weight = PROBABILITY(s, i), slope = weight * (change - PRODUCT_AT(i)) * scale;
        for (long e = 0; e < width; ++e) k_sum[e] += slope * (ACC)IN_LOAD(query, Q_ROW(i) + e * q_e);
        for (long e = 0; e < value_width; ++e) v_sum[e] += weight * (ACC)IN_LOAD(grad, GRAD_ROW(i) + e * grad_e);
      }
    }
    const long h = key_head;
    for (long e = 0; e < width; ++e) IN_STORE(of_key, OF_KEY_ROW(j) + e * of_key_e, k_sum[e]);
    for (long e = 0; e < value_width; ++e) IN_STORE(of_value, OF_VALUE_ROW(j) + e * of_value_e, v_sum[e]);
  }
  CLEAR_OUTSIDE_KEYS
}
"""
