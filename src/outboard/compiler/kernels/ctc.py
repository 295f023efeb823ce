# SPDX-License-Identifier: Apache-2.0
"""Connectionist temporal classification (Graves et al. 2006): the recursions over states, in logarithms.

The states of a sequence are its labels with blanks before, between and after them. The operators are our own
(``csrc/torch/operators/ctc.cpp`` declares and calls them): ``lengths`` holds, for each sequence, the length of its
input, the number of its labels, and where they begin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..plans import plan as p
from ..plans.builder import PlanBuilder, TensorArg
from ..printing.emitted import assertion
from . import common

if TYPE_CHECKING:
    from .call import ExternCall

_BODY = r"""
#if GROUP > 1
#define MEET() OB_BARRIER()
#else
#define MEET()
#endif
/* One number at a time, step `t` of sequence `b`, label `c`. */
#define LOG_PROB(t, b, c) log_probs[(t) * step_t + (b) * step_b + (c) * step_c]
#define ALPHA(t, s) log_alpha[(b * times + (t)) * states + (s)]
#define SIZES \
  const long times, const long batches, const long labels, const long states, const long step_t, const long step_b, \
  const long step_c, const long blank, OB_GLOBAL int* failed

/* The label of a state. */
long label_of(OB_GLOBAL const INDEX_T* targets, long first, long s, long blank, long labels,
                        OB_GLOBAL int* failed) {
  if (s % 2 == 0) return blank;
  const long label = (long)targets[first + s / 2];
  if (label >= 0 && label < labels) return label;
  OB_FAIL(failed, WRONG_LABEL);
  return blank;
}
REAL_T log_of_sum(REAL_T a, REAL_T b, REAL_T c) {
  REAL_T most = a > b ? a : b;
  if (c > most) most = c;
  if (most == -(REAL_T)INFINITY) most = 0;
  return log(exp(a - most) + exp(b - most) + exp(c - most)) + most;
}

/* A work-group for each sequence. log_alpha: the sum over all paths that lead to a state. */
OB_KERNEL void forward(OB_GLOBAL const REAL_T* log_probs, OB_GLOBAL const INDEX_T* targets,
                       OB_GLOBAL const long* lengths, OB_GLOBAL REAL_T* losses, OB_GLOBAL REAL_T* log_alpha, SIZES) {
  const REAL_T none = -(REAL_T)INFINITY;
  for (long b = OB_GROUP_ID(0); b < batches; b += OB_GROUP_COUNT(0)) {
    const long length = lengths[b], count = lengths[batches + b], first = lengths[2 * batches + b];
    const long end = 2 * count + 1;
    for (long t = 0; t < length; ++t) {
      for (long s = OB_LOCAL_ID(0); s < end; s += GROUP) {
        const long label = label_of(targets, first, s, blank, labels, failed);
        REAL_T sum = none;
        if (t == 0) {
          sum = s < 2 ? (REAL_T)0 : none;
        } else {
          const int skips = s > 1 && label_of(targets, first, s - 2, blank, labels, failed) != label;
          sum = log_of_sum(ALPHA(t - 1, s), s > 0 ? ALPHA(t - 1, s - 1) : none, skips ? ALPHA(t - 1, s - 2) : none);
        }
        ALPHA(t, s) = sum + LOG_PROB(t, b, label);
      }
      MEET();
    }
    if (OB_LOCAL_ID(0) == 0) {
      REAL_T loss = count == 0 ? (REAL_T)0 : (REAL_T)INFINITY;
      if (length > 0)
        loss = -log_of_sum(ALPHA(length - 1, end - 1), count > 0 ? ALPHA(length - 1, end - 2) : none, none);
      losses[b] = loss;
    }
    MEET();
  }
}

/* The same from the other end. */
OB_KERNEL void backward(OB_GLOBAL const REAL_T* log_probs, OB_GLOBAL const INDEX_T* targets,
                        OB_GLOBAL const long* lengths, OB_GLOBAL REAL_T* log_alpha, SIZES) {
  const REAL_T none = -(REAL_T)INFINITY;
  for (long b = OB_GROUP_ID(0); b < batches; b += OB_GROUP_COUNT(0)) {
    const long length = lengths[b], count = lengths[batches + b], first = lengths[2 * batches + b];
    const long end = 2 * count + 1;
    for (long t = length - 1; t >= 0; --t) {
      for (long s = OB_LOCAL_ID(0); s < end; s += GROUP) {
        const long label = label_of(targets, first, s, blank, labels, failed);
        REAL_T sum = none;
        if (t == length - 1) {
          sum = s >= end - 2 ? (REAL_T)0 : none;
        } else {
          const int skips = s + 2 < end && label_of(targets, first, s + 2, blank, labels, failed) != label;
          sum = log_of_sum(ALPHA(t + 1, s), s + 1 < end ? ALPHA(t + 1, s + 1) : none,
                           skips ? ALPHA(t + 1, s + 2) : none);
        }
        ALPHA(t, s) = sum + LOG_PROB(t, b, label);
      }
      MEET();
    }
  }
}

/* For each step and label the sum over the states of this label. */
OB_KERNEL void collect(OB_GLOBAL const INDEX_T* targets, OB_GLOBAL const long* lengths,
                       OB_GLOBAL const REAL_T* log_alpha, OB_GLOBAL const REAL_T* log_beta, OB_GLOBAL REAL_T* sums,
                       SIZES) {
  const REAL_T none = -(REAL_T)INFINITY;
  OB_FOR(row, times * batches) {
    const long t = row / batches, b = row % batches;
    OB_GLOBAL REAL_T* to = sums + row * labels;
    for (long c = 0; c < labels; ++c) to[c] = none;
    if (t >= lengths[b]) continue;
    for (long s = 0; s < 2 * lengths[batches + b] + 1; ++s) {
      const long label = label_of(targets, lengths[2 * batches + b], s, blank, labels, failed);
      const long at = (b * times + t) * states + s;
      to[label] = log_of_sum(to[label], log_alpha[at] + log_beta[at], none);
    }
  }
}
"""
#: What a label that is none is reported as.
_WRONG_LABEL = "ctc_loss: a label is out of range"


def _covered(builder: PlanBuilder, *tensors: TensorArg) -> bool:
    """Whether ``log_probs``, ``targets`` and ``lengths`` are of dtypes, and lie, as kernels take them."""
    log_probs, targets, lengths = tensors
    is_real = log_probs.dtype in (torch.float32, torch.float64) and common.supported(builder, log_probs.dtype)
    return is_real and targets.is_contiguous() and lengths.is_contiguous()


def _group(builder: PlanBuilder) -> int:
    """Work-items that share the states of a sequence."""
    return common.group_size(builder, 128)


def _text(builder: PlanBuilder, log_probs: TensorArg, targets: TensorArg, wrong_label: int) -> str:
    defines = {"GROUP": _group(builder), "WRONG_LABEL": wrong_label}
    return common.source(builder, _BODY, defines, {"REAL": log_probs.dtype, "INDEX": targets.dtype})


def lower_loss(builder: PlanBuilder, call: ExternCall) -> bool:
    """``ctc_loss``: the losses (batch), and ``log_alpha`` (batch, times, states)."""
    log_probs, targets, lengths = (call.tensor(i) for i in range(3))
    losses, log_alpha = call.outputs()
    if not _covered(builder, log_probs, targets, lengths) or not log_alpha.is_contiguous():
        return False
    wrong_label = assertion(_WRONG_LABEL)
    kernel = builder.kernel(_text(builder, log_probs, targets, wrong_label.code), "forward")
    arguments = [builder.pointer(item) for item in (log_probs, targets, lengths, losses, log_alpha)]
    arguments += _sizes(builder, log_probs, log_alpha, call.args[4])
    arguments.append(builder.assertions([wrong_label]))
    common.launch_groups(builder, kernel, log_probs.sizes[1], arguments, _group(builder))
    return True


def lower_sums(builder: PlanBuilder, call: ExternCall) -> bool:
    """``ctc_sums``: for each step, sequence and label (the shape of ``log_probs``) the logarithm of the probability of
    all paths through states of this label, which counts the label itself twice."""
    log_probs, targets, lengths, log_alpha = (call.tensor(i) for i in range(4))
    sums = call.outputs()[0]
    if not _covered(builder, log_probs, targets, lengths) or not log_alpha.is_contiguous() or not sums.is_contiguous():
        return False
    wrong_label = assertion(_WRONG_LABEL)
    text = _text(builder, log_probs, targets, wrong_label.code)
    log_beta = builder.allocate_like(log_alpha.sizes, log_alpha.strides, log_alpha.dtype)
    numbers = _sizes(builder, log_probs, log_alpha, call.args[4])
    for name, tensors in (
        ("backward", (log_probs, targets, lengths, log_beta)),
        ("collect", (targets, lengths, log_alpha, log_beta, sums)),
    ):
        arguments = [*(builder.pointer(item) for item in tensors), *numbers, builder.assertions([wrong_label])]
        kernel = builder.kernel(text, name)
        if name == "backward":
            common.launch_groups(builder, kernel, log_probs.sizes[1], arguments, _group(builder))
        else:
            common.launch_items(builder, kernel, log_probs.sizes[0] * log_probs.sizes[1], arguments, grain=4)
    builder.free(log_beta.buffer)
    return True


def _sizes(builder: PlanBuilder, log_probs: TensorArg, log_alpha: TensorArg, blank: object) -> list[p.Argument]:
    """The numbers that all kernels take."""
    times, batches, labels = log_probs.sizes
    return [builder.int64(n) for n in (times, batches, labels, log_alpha.sizes[2], *log_probs.strides, blank)]
