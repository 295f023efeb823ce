// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "runtime/device.h"

/// The runtime's devices as PyTorch asks for them: by DeviceIndex, -1 meaning the current one.
namespace outboard::aten {

/// Starts the runtime with these drivers. Missing hardware is no error: it shows in `problems()`.
void initialize(const std::vector<std::string>& driver_paths, const Runtime::Choice& choice,
                const std::vector<std::string>& last_resort);
const std::vector<std::string>& problems();

/// Number of devices; 0 before `initialize` and without hardware. Never throws.
c10::DeviceIndex device_count() noexcept;

/// The calling thread's current device index; 0 where there is none. Never throws.
c10::DeviceIndex current_device() noexcept;
/// Throws c10::Error if there is no such device.
void set_current_device(c10::DeviceIndex index);

/// The device with this index (-1: the current one). Throws c10::Error: without hardware with what to install, for
/// a wrong index with the valid range, in a forked child with what to do instead.
Device& device(c10::DeviceIndex index);

/// Throws c10::Error in a process that was forked after devices were opened. Before a lock is taken, which a thread may
/// have held that does not exist there.
void require_parent_process();

inline c10::Device torch_device(c10::DeviceIndex index) { return {c10::DeviceType::PrivateUse1, index}; }

}  // namespace outboard::aten
