// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <string_view>

namespace outboard::common {

/// A directory for temporary files that nobody else can exchange: TMPDIR, or /tmp if others can in TMPDIR.
std::string trusted_temporary_folder();

/// Machine code of kernels: a shared library that is loaded from its image in memory.
class KernelLibrary {
 public:
  /// nullptr if the system does not take the image, or so many are loaded already that the process would run out of
  /// mappings. `image` must be a whole library.
  static std::unique_ptr<KernelLibrary> load(std::string_view image);
  /// Why the calling thread's last `load` returned nullptr.
  static const std::string& problem();
  ~KernelLibrary();
  KernelLibrary(const KernelLibrary&) = delete;
  KernelLibrary& operator=(const KernelLibrary&) = delete;

  /// The address of what the library exports by this name; nullptr if there is none.
  void* find(const std::string& symbol) const;

 private:
  explicit KernelLibrary(void* handle) : handle_(handle) {}

  void* const handle_;
};

}  // namespace outboard::common
