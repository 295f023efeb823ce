// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

/// Shapes and parts of the tensors of collectives.
namespace outboard::distributed {

using Tensors = std::vector<at::Tensor>;
using TensorLists = std::vector<std::vector<at::Tensor>>;

/// All tensors of all lists.
Tensors joined(const TensorLists& lists);
/// The tensor of a list of one. Throws c10::ValueError for another number of tensors.
const at::Tensor& only(const Tensors& tensors);

/// Whether all have the shape and the dtype of the first one.
bool of_one_shape(const Tensors& tensors);
/// Whether these have as many elements, of one dtype.
bool of_one_size(const at::Tensor& one, const at::Tensor& other);
bool are_dense(const Tensors& tensors);
/// Whether it goes in parts.
bool is_long(const at::Tensor& tensor);
bool any_is_long(const Tensors& tensors);
/// How many parts so many bytes have.
int64_t count_of_parts(uint64_t bytes);

/// Dense elements in the order of memory.
at::Tensor flat(const at::Tensor& tensor);
Tensors flattened(const Tensors& tensors);
/// Numbers of elements.
std::vector<int64_t> counts_of(const Tensors& tensors);
uint64_t bytes_of_all(const Tensors& tensors);
/// A new tensor of the elements of all tensors, one after the other.
at::Tensor in_a_row(const Tensors& tensors);

/// Elements of a dense tensor of the device, in the order of memory.
at::Tensor some_of(const at::Tensor& tensor, int64_t begin, int64_t end);
/// A part of a dense tensor's elements. Parts are alike, so that ranks with unlike tensors have unlike parts from the
/// first one on.
at::Tensor part_of(const at::Tensor& tensor, int64_t part, int64_t parts);
Tensors part_of_each(const Tensors& tensors, int64_t part, int64_t parts);
/// What belongs to each rank of a dense tensor of all.
Tensors places_of(const at::Tensor& tensor, int ranks);

/// The same elements in the order of rows, in which ranks exchange lists of tensors.
Tensors contiguous(const Tensors& tensors);
/// Tensors to receive into in the order of rows: these, where that is theirs.
Tensors contiguous_places(const Tensors& tensors);
/// Copies what has arrived elsewhere to where it belongs.
void copy_back(const Tensors& from, const Tensors& to);

}  // namespace outboard::distributed
