// SPDX-License-Identifier: Apache-2.0
#include "opencl/pocl_cache.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "runtime/trusted_file.h"

namespace outboard::opencl {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* text = std::getenv(name);
  return text != nullptr ? text : "";
}

/// Where PoCL keeps its cache by itself. Without a home that is a place below /tmp that everybody can guess: none.
fs::path usual_place() {
  const std::string cache = variable("XDG_CACHE_HOME"), home = variable("HOME");
  if (!cache.empty()) return fs::path(cache) / "pocl" / "kcache";
  return home.empty() ? fs::path() : fs::path(home) / ".cache" / "pocl" / "kcache";
}

/// Whether this process can write the directory, or make it, and nobody else can.
bool is_usable(fs::path folder) {
  std::error_code error;
  while (!folder.empty() && folder != folder.root_path() && !fs::exists(folder, error)) folder = folder.parent_path();
  return !folder.empty() && access(folder.c_str(), W_OK | X_OK) == 0 && trusted::is_trusted_directory(folder, true);
}

/// The directory that was made for this process, and its number: forked ones leave it to it.
struct OwnPlace {
  std::string path;
  pid_t owner = 0;
};
OwnPlace& own_place() {
  static OwnPlace* const instance = new OwnPlace;
  return *instance;
}

void remove_own_place() {
  std::error_code error;
  if (getpid() == own_place().owner) fs::remove_all(own_place().path, error);
}

}  // namespace

void place_pocl_cache() {
  if (!variable("POCL_CACHE_DIR").empty() || is_usable(usual_place())) return;
  std::string path = trusted_temporary_folder() + "/outboard-pocl-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) return;  // nowhere to write: PoCL will say so
  own_place() = {path, getpid()};
  setenv("POCL_CACHE_DIR", path.c_str(), 1);
  std::atexit(remove_own_place);
}

std::string trusted_temporary_folder() {
  const std::string chosen = variable("TMPDIR");
  return !chosen.empty() && trusted::is_trusted_directory(chosen, true) ? chosen : "/tmp";
}

}  // namespace outboard::opencl
