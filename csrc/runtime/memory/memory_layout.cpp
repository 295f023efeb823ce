// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/memory_layout.h"

#include <utility>

#include "runtime/device.h"
#include "runtime/memory/allocation.h"
#include "runtime/programs/loaded_functions.h"
#include "runtime/streams/library_work.h"

namespace outboard {
namespace {

constexpr uint32_t kUInt8 = 0;  // of c10::ScalarType

void add(LibraryWork& call, const DenseTensor& tensor, ob_ptr data, bool result) {
  std::vector<int64_t> strides(tensor.sizes.size());
  int64_t stride = 1;
  for (size_t d = strides.size(); d-- > 0; stride *= tensor.sizes[d]) strides[d] = stride;
  call.add_tensor(data, tensor.dtype, tensor.sizes, std::move(strides), result);
}

}  // namespace

MemoryLayout::MemoryLayout(std::string name, DenseTensor strided, DenseTensor arranged, Relayout to, Relayout from)
    : name_(std::move(name)),
      strided_(std::move(strided)),
      arranged_(std::move(arranged)),
      to_(std::move(to)),
      from_(std::move(from)) {}

bool MemoryLayout::is_same(const MemoryLayout& other) const {
  if (this == &other) return true;
  return name_ == other.name_ && strided_ == other.strided_ && arranged_ == other.arranged_ &&
         to_.function == other.to_.function && from_.function == other.from_.function;  // equal bytes are loaded once
}

void MemoryLayout::to(Work& work, ob_ptr strided, ob_ptr arranged) const {
  submit(work, "to " + name_, to_, strided_, strided, arranged_, arranged);
}

void MemoryLayout::from(Work& work, ob_ptr arranged, ob_ptr strided) const {
  submit(work, "from " + name_, from_, arranged_, arranged, strided_, strided);
}

void MemoryLayout::submit(Work& work, const std::string& name, const Relayout& relayout, const DenseTensor& read,
                          ob_ptr source, const DenseTensor& made, ob_ptr target) {
  const auto call = std::make_shared<LibraryWork>(name);
  add(*call, read, source, false);
  add(*call, made, target, true);
  const auto release = [](Allocation* memory) { memory->release(); };
  std::unique_ptr<Allocation, decltype(release)> scratch(nullptr, release);
  if (relayout.scratch != 0) {
    scratch.reset(Allocation::create_internal(work.stream().device(), relayout.scratch));
    const ob_ptr memory = work.resolve(*scratch, Access::kOverwrite);
    add(*call, {kUInt8, {static_cast<int64_t>(relayout.scratch)}, relayout.scratch}, memory, true);
  }
  call->set_function(relayout.function);
  work.stream().call(call);
}

Arrangement::Arrangement(std::shared_ptr<const MemoryLayout> layout, Allocation& contents)
    : layout_(std::move(layout)), contents_(contents) {
  any_.store(true, std::memory_order_relaxed);
}

Arrangement::~Arrangement() { contents_.release(); }

}  // namespace outboard
