// SPDX-License-Identifier: Apache-2.0
#include "strict/violations.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "strict/options.h"

namespace outboard::strict {
namespace {

std::atomic<uint64_t> count{0};

}  // namespace

ob_status violation(const std::string& text) {
  count.fetch_add(1);
  std::fprintf(stderr, "outboard-strict: the contract of driver.h is broken: %s\n", text.c_str());
  if (Options::get().abort) std::abort();
  return fail(OB_INVALID_ARGUMENT, text);
}

uint64_t violations() { return count.load(); }

}  // namespace outboard::strict
