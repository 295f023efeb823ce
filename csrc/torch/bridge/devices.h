// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <string>
#include <vector>

#include "runtime/device.h"

/// The runtime's devices as PyTorch asks for them: by DeviceIndex, -1 meaning the current one.
namespace outboard::aten {

/// Says how devices are opened: at the first question that only they can answer, so that a process which does not use
/// them has none, and until then may still choose them and fork. `open` may be called by several threads at once, and
/// again if it throws; missing hardware is no error, it shows in `problems()`.
void open_devices_with(std::function<Runtime&()> open);
/// Whether they were, which this does not do. Never throws.
bool devices_opened() noexcept;
/// The runtime, its devices opened. Throws c10::Error if nothing says how.
Runtime& opened_runtime();
/// What kept drivers and devices from being used. Opens them.
const std::vector<std::string>& problems();

/// Number of devices, which it opens; 0 without hardware, and while they are being opened. Never throws.
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
