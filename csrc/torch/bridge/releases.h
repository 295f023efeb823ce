// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/AllocatorConfig.h>
#include <torch/headeronly/version.h>

#include <cstddef>
#include <limits>

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
#include <ATen/core/Dimname.h>

namespace c10d {
struct NCCLPreMulSumSupplement;
}  // namespace c10d
#else
namespace c10d {
struct PreMulSumSupplement;
}  // namespace c10d
#endif

/// Where the C++ interfaces of PyTorch's releases differ, and nowhere else: the newest release's names, which the
/// others have here too.
namespace outboard::releases {

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13

/// The lists of ATen/autocast_mode.h have operators on named dimensions.
using at::DimnameList;

using PreMulSumSupplement = c10d::NCCLPreMulSumSupplement;

/// PYTORCH_ALLOC_CONF has no limits of pinned memory.
inline size_t pinned_max_round_threshold() { return std::numeric_limits<size_t>::max(); }
inline size_t pinned_max_cached_size() { return std::numeric_limits<size_t>::max(); }

#else

using c10d::PreMulSumSupplement;

inline size_t pinned_max_round_threshold() {
  return c10::CachingAllocator::AcceleratorAllocatorConfig::pinned_max_round_threshold();
}
inline size_t pinned_max_cached_size() {
  return c10::CachingAllocator::AcceleratorAllocatorConfig::pinned_max_cached_size();
}

#endif

}  // namespace outboard::releases
