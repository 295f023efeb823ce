// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace outboard {

/// A whole file in memory, read when it is touched.
class MappedFile {
 public:
  /// Throws Error(OB_INVALID_ARGUMENT) if the file cannot be read.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  const uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace outboard
