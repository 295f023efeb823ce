// SPDX-License-Identifier: Apache-2.0
// Files are read only if nobody but the user and root can have written them.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "check.h"
#include "runtime/base/trusted_file.h"

using namespace outboard;
namespace fs = std::filesystem;

namespace {

constexpr uid_t kNobody = 65534;

/// A directory that only the user can write, and that goes with the object.
class Folder {
 public:
  Folder() {
    char name[] = "/tmp/outboard-trusted-XXXXXX";
    if (mkdtemp(name) == nullptr) throw std::runtime_error("mkdtemp failed");
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

mode_t mode_of(const std::string& path) {
  struct stat status{};
  CHECK_EQ(lstat(path.c_str(), &status), 0);
  return status.st_mode & 07777;
}

/// What reading a file ends with.
std::string verdict(const std::string& path) {
  try {
    return trusted::read(path).has_value() ? "content" : "none";
  } catch (const trusted::Untrusted& error) {
    const std::string text = error.what();
    CHECK(text.find("chmod go-w") != std::string::npos && text.find('\n') == std::string::npos);
    return "untrusted";
  }
}

/// A step of a case.
void carry_out(const std::string& step, const std::string& path, const std::string& word) {
  const auto mode = static_cast<mode_t>(std::strtoul(word.c_str(), nullptr, 8));
  if (step == "file") CHECK(trusted::write(path, "one"));
  if (step == "dir") fs::create_directories(path);
  if (step == "pipe") CHECK_EQ(mkfifo(path.c_str(), 0600), 0);
  if (step == "link") fs::create_symlink(word, path);
  if (step == "nobody") CHECK_EQ(lchown(path.c_str(), kNobody, kNobody), 0);
  if (mode != 0 && step != "link") CHECK_EQ(chmod(path.c_str(), mode), 0);
}

}  // namespace

TEST(what_is_written_is_read_and_is_for_the_user_alone) {
  const Folder folder;
  const std::string path = folder / "a/b/file";
  CHECK(!trusted::read(path).has_value());
  umask(0);
  CHECK(trusted::write(path, "one"));
  CHECK(trusted::write(path, std::string(100000, 'x')));
  umask(022);
  CHECK(trusted::read(path) == std::string(100000, 'x'));
  CHECK_EQ(mode_of(path), static_cast<mode_t>(0600));
  CHECK_EQ(mode_of(folder / "a"), static_cast<mode_t>(0700));
  CHECK_EQ(mode_of(folder / "a/b"), static_cast<mode_t>(0700));
  CHECK_EQ(std::distance(fs::directory_iterator(folder / "a/b"), fs::directory_iterator()), 1);
}

/// The cases of tests/package/trusted_files.txt, which the implementation in Python is held to, too.
TEST(which_files_are_trusted) {
  std::ifstream cases(OUTBOARD_TRUSTED_FILES);
  std::unique_ptr<Folder> folder;
  std::string line;
  int asked = 0;
  while (std::getline(cases, line)) {
    std::istringstream words(line);
    std::string step, name, word;
    words >> step >> name >> word;
    if (step == "case") folder = std::make_unique<Folder>();
    if (step.empty() || step == "#" || step == "case" || folder == nullptr) continue;
    const std::string path = *folder / name;
    if (step == "nobody" && geteuid() != 0) {
      folder = nullptr;  // who is not root can give nothing to others
    } else if (step == "read") {
      check::equal(verdict(path), word, line.c_str(), __FILE__, ++asked);
    } else if (step == "trusted") {
      check::equal(trusted::is_trusted_file(path), word == "yes", line.c_str(), __FILE__, ++asked);
    } else {
      carry_out(step, path, word.rfind('@', 0) == 0 ? *folder / word.substr(2) : word);
    }
  }
  CHECK(asked > 20);
}

TEST(what_cannot_be_written_stays) {
  const Folder folder;
  CHECK(!trusted::write("/proc/none/file", "one"));
  trusted::write(folder / "file", "one");
  CHECK(!trusted::write(folder / "file/below", "two"));
  CHECK(trusted::read(folder / "file") == std::string("one"));
}

TEST(it_is_said_once) {
  char name[] = "/tmp/outboard-said-XXXXXX";
  const int file = mkstemp(name), before = dup(2);
  dup2(file, 2);
  for (int i = 0; i < 3; ++i) trusted::say_once("entries are not used", trusted::Untrusted("/a is anybody's"));
  dup2(before, 2);
  std::string said;
  std::getline(std::ifstream(name), said, '\0');
  unlink(name);
  CHECK_EQ(said, "outboard: entries are not used: /a is anybody's\n");
}

int main() { return check::run_all(); }
