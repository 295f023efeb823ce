// SPDX-License-Identifier: Apache-2.0
#include "cuda/library.h"

#include <algorithm>

#include "common/operands.h"
#include "cuda/cublas.h"
#include "cuda/cudnn.h"
#include "cuda/device.h"

namespace outboard::cuda {

uint32_t alignment_of(ob_ptr address, uint32_t most) {
  return static_cast<uint32_t>(address == 0 ? most : std::min(address & (~address + 1), ob_ptr{most}));
}

std::string key_of(const std::vector<ob_operand>& operands, uint32_t most) {
  std::string key = common::shapes_of(operands);
  for (const ob_operand& operand : operands) {
    const uint32_t alignment = is_tensor(operand) ? alignment_of(operand.data, most) : 0;
    key.append(reinterpret_cast<const char*>(&alignment), sizeof(alignment));
  }
  return key;
}

CUresult Workspace::reserve(size_t bytes) {
  if (bytes <= bytes_) return CUDA_SUCCESS;
  size_t more = std::max(bytes_, Function::kWorkspace);
  while (more < bytes) more *= 2;
  release();
  const CUresult result = cu().cuMemAlloc(&address_, more);
  if (result == CUDA_SUCCESS) bytes_ = more;
  return result;
}

void Workspace::release() {
  if (address_ != 0) cu().cuMemFree(address_);
  address_ = 0;
  bytes_ = 0;
}

Libraries Libraries::load() {
  Libraries found;
  found.products = Cublas::load();
  found.cudnn = Cudnn::load(&found.without_cudnn);
  return found;
}

std::string Libraries::name() const {
  std::string names = products != nullptr ? products->name() : "";
  if (cudnn != nullptr) names += (names.empty() ? "" : ", ") + cudnn->name();
  return names;
}

FunctionTable::FunctionTable(const Libraries& libraries) : libraries_(libraries) {}
FunctionTable::~FunctionTable() = default;

std::unique_ptr<Function> FunctionTable::make_by_cudnn(const std::string& name, std::string* why) {
  *why = libraries_.without_cudnn;
  if (libraries_.cudnn == nullptr) return nullptr;
  const bool attends = name == Attention::kName;
  *why = libraries_.cudnn->name() + " is too old for attention: version 9.21 has it";
  if (attends && !libraries_.cudnn->has_attention()) return nullptr;
  if (cudnn_ == nullptr) cudnn_ = CudnnHandle::create(*libraries_.cudnn, why);
  if (cudnn_ == nullptr) return nullptr;
  if (attends) return std::make_unique<Attention>(*cudnn_);
  return std::make_unique<Convolution>(*cudnn_, name == Convolution::kGradient);
}

std::unique_ptr<Function> FunctionTable::make(const std::string& name, std::string* why) {
  const auto is_any_of = [&](auto... names) { return (... || (name == names)); };
  if (is_any_of(Convolution::kName, Convolution::kGradient, Attention::kName)) return make_by_cudnn(name, why);
  *why = "cuBLASLt was not found";
  if (libraries_.products == nullptr) return nullptr;
  *why = "cuBLASLt does not work with this GPU";
  if (products_ == nullptr) products_ = create_cublas(*libraries_.products);
  return products_ != nullptr ? std::make_unique<Product>(*libraries_.products, products_, name) : nullptr;
}

Function* FunctionTable::known(const std::string& name, const std::vector<ob_operand>& operands, std::string* why) {
  const std::string key = name + '\0' + common::pattern_of(operands);
  const std::lock_guard lock(mutex_);
  const auto place = functions_.find(key);
  if (place != functions_.end()) return place->second.get();
  std::unique_ptr<Function> made = make(name, why);
  return made != nullptr ? functions_.emplace(key, std::move(made)).first->second.get() : nullptr;
}

Function* FunctionTable::find(const std::string& name, const std::vector<ob_operand>& operands, std::string* why) {
  Function* const function = known(name, operands, why);
  if (function == nullptr) return nullptr;
  *why = "there is no library function for " + name;
  return function->prepare(operands) ? function : nullptr;
}

}  // namespace outboard::cuda
