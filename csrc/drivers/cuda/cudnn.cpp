// SPDX-License-Identifier: Apache-2.0
#include "cuda/cudnn.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "common/symbols.h"
#include "cuda/cudnn_graph.h"
#include "cuda/device.h"

namespace outboard::cuda {
namespace {

constexpr size_t kMajor = 9;
constexpr size_t kAttention = 92100;  // the version that has it
/// Of the device's memory, a stream's calls may use one part of so many for intermediate results, and at most so much.
constexpr size_t kShare = 64, kMostWorkspace = size_t{1} << 30;

}  // namespace

Cudnn* Cudnn::load(std::string* why) {
  const char* const chosen = std::getenv("OUTBOARD_CUDA_CUDNN");
  const char* const file = chosen != nullptr && *chosen != '\0' ? chosen : "libcudnn.so.9";
  void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  *why = "cuDNN was not found: 'pip install nvidia-cudnn-cu13' brings it";
  if (library == nullptr) return nullptr;
  auto api = std::make_unique<CudnnApi>();
  bool whole = true;
#define OUTBOARD_FIND(function) whole = whole && common::find_symbol(library, #function, api->function);
  OUTBOARD_FIND(cudnnGetVersion)
  OUTBOARD_FIND(cudnnGetErrorString)
  OUTBOARD_FIND(cudnnGetLastErrorString)
  OUTBOARD_FIND(cudnnCreate)
  OUTBOARD_FIND(cudnnSetStream)
  OUTBOARD_FIND(cudnnBackendCreateDescriptor)
  OUTBOARD_FIND(cudnnBackendDestroyDescriptor)
  OUTBOARD_FIND(cudnnBackendFinalize)
  OUTBOARD_FIND(cudnnBackendSetAttribute)
  OUTBOARD_FIND(cudnnBackendGetAttribute)
  OUTBOARD_FIND(cudnnBackendExecute)
#undef OUTBOARD_FIND
  *why = std::string(file) + " is not cuDNN 9";
  return whole && api->cudnnGetVersion() / 10000 == kMajor ? new Cudnn(std::move(api)) : nullptr;
}

Cudnn::Cudnn(std::unique_ptr<CudnnApi> api) : api_(std::move(api)) {
  const size_t version = api_->cudnnGetVersion();
  name_ = "cuDNN " + std::to_string(version / 10000) + "." + std::to_string(version % 10000 / 100) + "." +
          std::to_string(version % 100);
}

bool Cudnn::has_attention() const { return api_->cudnnGetVersion() >= kAttention; }

std::unique_ptr<CudnnHandle> CudnnHandle::create(const Cudnn& library, std::string* why) {
  size_t free = 0, total = 0;
  cu().cuMemGetInfo(&free, &total);
  const size_t most_workspace = std::clamp(total / kShare, Function::kWorkspace, kMostWorkspace);
  void* handle = nullptr;
  const int status = library.api().cudnnCreate(&handle);
  if (status == cudnn::kSuccess) return std::unique_ptr<CudnnHandle>(new CudnnHandle(library, handle, most_workspace));
  *why = "cuDNN does not work with this GPU: cudnnCreate returned " + text_of(library.api(), status);
  return nullptr;
}

std::string CudnnHandle::text_of(const CudnnApi& api, int status) {
  char detail[512] = "";
  api.cudnnGetLastErrorString(detail, sizeof(detail));
  detail[sizeof(detail) - 1] = '\0';
  const std::string name = api.cudnnGetErrorString(status);
  return std::to_string(status) + " (" + name + (*detail != '\0' ? ": " + std::string(detail) : "") + ")";
}

}  // namespace outboard::cuda
