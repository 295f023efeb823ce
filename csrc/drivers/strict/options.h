// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "outboard/driver.h"

namespace outboard::strict {

/// What the environment asks of the strict driver: variables that begin with OUTBOARD_STRICT_ (see docs/driver.md).
struct Options {
  static const Options& get();

  /// Lowers what a device declares to the limits asked for, and makes its `cache_key` tell them.
  void restrict(ob_device_properties& properties) const;

  std::string problem;   ///< what is wrong with the environment; empty if nothing is
  std::string driver;    ///< path of the library that is wrapped
  uint64_t delay = 100;  ///< microseconds that a command may be late
  uint64_t seed = 0;
  bool graphs = true;
  bool abort = false;

 private:
  Options();
  uint64_t number(const char* name, uint64_t otherwise);

  static constexpr uint64_t kAsItIs = UINT64_MAX;
  uint64_t work_group_, local_memory_, argument_bytes_, max_allocation_, memory_, alignment_;
  uint64_t fp16_, fp64_, int64_atomics_, sub_group_, vector_width_, near_cache_, last_cache_;
  std::string type_, dialect_, compiler_, execution_;
};

}  // namespace outboard::strict
