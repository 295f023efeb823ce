// SPDX-License-Identifier: Apache-2.0
#include "host/switch_stack.h"

#include <cstdint>
#include <cstring>

#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace outboard::host {

#ifdef __x86_64__

extern "C" void outboard_host_switch_stack(void** from, void* to);

// The registers that a function must leave as they were (System V ABI, AMD64), and the stack pointer.
__asm__(
    ".text\n"
    ".p2align 4\n"
    ".local outboard_host_switch_stack\n"
    ".type outboard_host_switch_stack, @function\n"
    "outboard_host_switch_stack:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
    ".size outboard_host_switch_stack, .-outboard_host_switch_stack\n");

void switch_stack(void** from, void* to) { outboard_host_switch_stack(from, to); }

void* new_stack(char* memory, size_t bytes, void (*function)()) {
  constexpr size_t kRegisters = 6;
  // Behind the registers lies where to go on; a function begins 8 bytes off an address that 16 divides.
  uint64_t* const top = reinterpret_cast<uint64_t*>(memory + bytes);
  uint64_t* const pointer = top - 2 - kRegisters;
  std::memset(pointer, 0, (kRegisters + 2) * sizeof(uint64_t));
  const auto address = reinterpret_cast<uint64_t>(function);
  std::memcpy(pointer + kRegisters, &address, sizeof(address));
  return pointer;
}

#else

namespace {

/// Lies at the top of the stack that it describes. The thread's own stack has one of its own.
struct Place {
  ucontext_t context;
};

thread_local Place own_place;

}  // namespace

void switch_stack(void** from, void* to) {
  Place* const here = *from != nullptr ? static_cast<Place*>(*from) : &own_place;
  *from = here;
  swapcontext(&here->context, &static_cast<Place*>(to)->context);
}

void* new_stack(char* memory, size_t bytes, void (*function)()) {
  constexpr size_t kAlignment = 64;
  const size_t rest = (bytes - sizeof(Place)) / kAlignment * kAlignment;
  Place* const place = reinterpret_cast<Place*>(memory + rest);
  getcontext(&place->context);
  place->context.uc_stack.ss_sp = memory;
  place->context.uc_stack.ss_size = rest;
  place->context.uc_link = nullptr;
  makecontext(&place->context, function, 0);
  return place;
}

#endif

}  // namespace outboard::host
