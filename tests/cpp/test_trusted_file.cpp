// SPDX-License-Identifier: Apache-2.0
// Files are read only if nobody but the user and root can have written them.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

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

bool refuses(const std::string& path) {
  try {
    trusted::read(path);
  } catch (const trusted::Untrusted& error) {
    const std::string text = error.what();
    CHECK(text.find("chmod go-w") != std::string::npos && text.find('\n') == std::string::npos);
    return true;
  }
  return false;
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

TEST(what_others_can_write_is_refused) {
  const Folder folder;
  const std::string path = folder / "a/b/file";
  trusted::write(path, "one");
  const std::vector<std::pair<std::string, mode_t>> wrong{
      {"a/b/file", 0602}, {"a/b/file", 0620}, {"a/b", 0702}, {"a/b", 01777}, {"a/b", 0720}, {"a", 0707}, {"a", 0770}};
  for (const auto& [name, mode] : wrong) {
    const mode_t right = mode_of(folder / name);
    chmod((folder / name).c_str(), mode);
    CHECK(refuses(path));
    chmod((folder / name).c_str(), right);
    CHECK(trusted::read(path) == std::string("one"));
  }
  chmod((folder / "a").c_str(), 01777);  // as /tmp
  CHECK(trusted::read(path) == std::string("one"));
}

TEST(what_belongs_to_others_is_refused) {
  const Folder folder;
  const std::string path = folder / "a/b/file";
  trusted::write(path, "one");
  if (geteuid() != 0) return;  // who is not root can give nothing to others
  for (const std::string name : {"a/b/file", "a/b", "a"}) {
    CHECK_EQ(chown((folder / name).c_str(), kNobody, kNobody), 0);
    CHECK(refuses(path));
    CHECK_EQ(chown((folder / name).c_str(), 0, 0), 0);
  }
  CHECK(trusted::read(path) == std::string("one"));
  // In a directory where everybody has files, who owns the next one decides.
  chmod((folder / "a").c_str(), 01777);
  CHECK_EQ(chown((folder / "a/b").c_str(), kNobody, kNobody), 0);
  CHECK(refuses(path));
  CHECK_EQ(chown((folder / "a/b").c_str(), 0, 0), 0);
}

TEST(links_lead_where_only_the_user_could_make_them_lead) {
  const Folder folder;
  trusted::write(folder / "real/b/file", "one");
  fs::create_symlink("real", folder / "link");
  CHECK(trusted::read(folder / "link/b/file") == std::string("one"));
  CHECK(trusted::read(folder / "link/../real/b/file") == std::string("one"));
  fs::create_symlink(folder / "real", folder / "real/b/back");
  CHECK(trusted::read(folder / "link/b/back/b/file") == std::string("one"));
  fs::create_symlink("file", folder / "real/b/alias");
  CHECK(refuses(folder / "real/b/alias"));
  fs::create_symlink("round", folder / "round");
  CHECK(!trusted::read(folder / "round/file").has_value());
  CHECK_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  CHECK(refuses(folder / "pipe"));  // and nobody waits for a writer
  if (geteuid() != 0) return;
  CHECK_EQ(lchown((folder / "link").c_str(), kNobody, kNobody), 0);
  CHECK(refuses(folder / "link/b/file"));
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
