// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace outboard::host {

/// Goes on where `to` was left, and keeps in `*from` where this one was. Registers that a call may change are lost, as
/// with any call; rounding modes are the thread's.
void switch_stack(void** from, void* to);

/// The stack pointer of a stack that has not run yet: what goes on there begins with `function`, which never returns.
/// `memory` has `bytes` bytes, a multiple of 16, and is aligned to 16.
void* new_stack(char* memory, size_t bytes, void (*function)());

}  // namespace outboard::host
