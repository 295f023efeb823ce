// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace outboard::aten {

/// An operator that Outboard defines (`outboard.compiler.kernels`), to be called with this signature. Throws c10::Error
/// if there is none.
template <typename Signature>
auto own_operator(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}

}  // namespace outboard::aten
