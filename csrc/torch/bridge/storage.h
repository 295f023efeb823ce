// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

#include <optional>

#include "runtime/memory/allocation.h"

namespace outboard::aten {

/// PyTorch's allocator for the device. Its DataPtr has an Allocation as context and that record's reserved address
/// as pointer, so that the host cannot dereference it by mistake.
c10::DeviceAllocator* storage_allocator();

/// A DataPtr that takes over one reference of `allocation`.
c10::DataPtr data_ptr_of(Allocation* allocation);

/// The Allocation of a DataPtr made by `data_ptr_of`, or nullptr for any other.
Allocation* allocation_in(const c10::DataPtr& data);

/// Changes the size of a storage, keeping the common prefix of its contents. Work is ordered on the current stream.
/// Throws c10::Error if the storage is not resizable.
void resize_storage(c10::StorageImpl& storage, size_t bytes);

/// Puts a storage of the device on the memory of a CPU storage, which has its contents already and as many bytes. What
/// is on shared memory cannot be resized. Throws c10::Error if the device does not take host memory.
void put_on_host_memory(c10::StorageImpl& storage, const c10::Storage& on_host);
/// A new storage of a device on a CPU storage's memory. Throws likewise.
c10::Storage storage_on_host_memory(const c10::Storage& on_host, c10::DeviceIndex index);
/// The CPU storage on whose memory a storage of the device was put; none for any other.
std::optional<c10::Storage> host_memory_of(const c10::Storage& storage);

}  // namespace outboard::aten
