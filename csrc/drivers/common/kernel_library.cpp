// SPDX-License-Identifier: Apache-2.0
#include "common/kernel_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "runtime/base/trusted_file.h"

namespace outboard::common {
namespace {

/// A process may have 65,530 mappings, and each library takes five.
constexpr int kMostLibraries = 6000;

std::atomic<int> libraries{0};
thread_local std::string last_problem;

/// A file that is gone when its owner is. Not a file of memory: debuggers open the paths of libraries, and would read
/// whatever descriptor of their own has the same number.
class TemporaryFile {
 public:
  explicit TemporaryFile(std::string_view content) {
    path_ = trusted_temporary_folder() + "/outboard-kernel-XXXXXX";
    const int file = mkstemp(path_.data());
    if (file < 0) return;
    complete_ = write(file, content.data(), content.size()) == static_cast<ssize_t>(content.size());
    close(file);
  }
  ~TemporaryFile() { unlink(path_.c_str()); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  bool complete() const { return complete_; }
  const char* path() const { return path_.c_str(); }

 private:
  std::string path_;
  bool complete_ = false;
};

/// nullptr, and `last_problem` says why, if that is not possible.
void* open_image(std::string_view image) {
  const TemporaryFile file(image);
  if (!file.complete()) {
    last_problem = std::string("cannot write ") + file.path();
    return nullptr;
  }
  void* const handle = dlopen(file.path(), RTLD_NOW | RTLD_LOCAL);
  if (handle != nullptr) return handle;
  const char* const error = dlerror();
  last_problem = error != nullptr ? error : "dlopen failed";
  return nullptr;
}

}  // namespace

std::string trusted_temporary_folder() {
  const char* variable = std::getenv("TMPDIR");
  const std::string chosen = variable != nullptr ? variable : "";
  return !chosen.empty() && trusted::is_trusted_directory(chosen, true) ? chosen : "/tmp";
}

std::unique_ptr<KernelLibrary> KernelLibrary::load(std::string_view image) {
  last_problem = "the process has loaded as many programs as it can";
  if (libraries.fetch_add(1, std::memory_order_relaxed) < kMostLibraries) {
    if (void* const handle = open_image(image)) return std::unique_ptr<KernelLibrary>(new KernelLibrary(handle));
  }
  libraries.fetch_sub(1, std::memory_order_relaxed);
  return nullptr;
}

const std::string& KernelLibrary::problem() { return last_problem; }

KernelLibrary::~KernelLibrary() {
  dlclose(handle_);
  libraries.fetch_sub(1, std::memory_order_relaxed);
}

void* KernelLibrary::find(const std::string& symbol) const { return dlsym(handle_, symbol.c_str()); }

}  // namespace outboard::common
