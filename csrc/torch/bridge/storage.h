// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Storage.h>

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

}  // namespace outboard::aten
