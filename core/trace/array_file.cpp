#include "trace/array_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace hvd {

namespace {

constexpr std::size_t kGroup = 16384;  // bytes written at one go, where elements are smaller

// Returns how many bytes were written before an error.
std::size_t write_all(int fd, std::string_view bytes, std::uint64_t offset) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t wrote =
        ::pwrite(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(offset + done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) break;
    done += static_cast<std::size_t>(wrote);
  }
  return done;
}

Status failure(const std::string& path, const char* what) {
  return Status::invalid_argument("'" + path + "' can't be " + what + ": " + std::strerror(errno));
}

// A part of a file in memory; it is false where the file system can't do that.
class Mapping {
 public:
  Mapping(int fd, std::uint64_t offset, std::size_t bytes) : bytes_(bytes) {
    void* const at =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(offset));
    if (at != MAP_FAILED) at_ = static_cast<char*>(at);
  }
  ~Mapping() {
    if (at_ != nullptr) ::munmap(at_, bytes_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  explicit operator bool() const { return at_ != nullptr; }
  char* at(std::size_t offset) const { return at_ + offset; }

 private:
  char* at_ = nullptr;
  std::size_t bytes_;
};

}  // namespace

Status ArrayFile::create(const std::string& path, std::unique_ptr<ArrayFile>& file) {
  Descriptor opened(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (!opened) return failure(path, "opened for writing");
  struct stat about{};
  if (::fstat(opened.get(), &about) == 0 && !S_ISREG(about.st_mode)) {
    return Status::invalid_argument("'" + path + "' is not an ordinary file");
  }
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return failure(path, "written through a pipe");
  Pipe pipe{Descriptor(ends[0]), Descriptor(ends[1])};
  if (::ftruncate(opened.get(), 0) != 0) return failure(path, "emptied");
  constexpr std::string_view kStart = "[\n]";
  if (write_all(opened.get(), kStart, 0) != kStart.size()) return failure(path, "written");
  file.reset(new ArrayFile(path, std::move(opened), std::move(pipe)));
  file->end_ = 1;
  return Status::ok();
}

Status ArrayFile::append(std::string_view lines) {
  std::string group;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(line.size() + 1, lines.size()));
    const std::size_t bytes = group.size() + 2 + line.size() + kClose.size();
    if (bytes > kGroup && !group.empty()) {
      if (Status status = write(group); !status.is_ok()) return status;
      group.clear();
    }
    group += empty_ && group.empty() ? "\n" : ",\n";
    group += line;
  }
  return group.empty() ? Status::ok() : write(group);
}

Status ArrayFile::write(std::string_view elements) {
  std::string bytes(elements);
  bytes += kClose;
  const std::string room(elements.size(), ' ');
  if (write_all(file_.get(), room, size()) == room.size() && replace_end(bytes)) {
    end_ += elements.size();
    empty_ = false;
    return Status::ok();
  }
  Status status = failure(path_, "written");
  // What stood there before; the bytes are the file's own, so no room is needed.
  write_all(file_.get(), kClose, end_);
  [[maybe_unused]] const int cut = ::ftruncate(file_.get(), static_cast<off_t>(size()));
  return status;
}

Status ArrayFile::rename(const std::string& path) {
  if (std::rename(path_.c_str(), path.c_str()) != 0) {
    return failure(path_, ("renamed to '" + path + "'").c_str());
  }
  path_ = path;
  return Status::ok();
}

void ArrayFile::exchange_names(ArrayFile& other) {
  const int exchanged =
      ::renameat2(AT_FDCWD, path_.c_str(), AT_FDCWD, other.path_.c_str(), RENAME_EXCHANGE);
  if (exchanged == 0) path_.swap(other.path_);
}

bool ArrayFile::replace_end(std::string_view bytes) {
  const std::size_t page = static_cast<std::size_t>(::getpagesize());
  const std::size_t before = end_ % page;  // in the mapping, before the bracket
  const Mapping mapping(file_.get(), end_ - before, before + bytes.size());
  if (!mapping) return write_all(file_.get(), bytes, end_) == bytes.size();
  // A page's first change may have to wait for the disk, and a signal ends that wait: each page is
  // changed once before it counts, into what it is.
  for (std::size_t at = before; at < before + bytes.size(); at += page - at % page) {
    const std::string_view same = at < before + kClose.size() ? kClose.substr(at - before, 1) : " ";
    if (!copy(mapping.at(at), same)) return false;
  }
  return copy(mapping.at(before), bytes);
}

bool ArrayFile::copy(char* to, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::write(pipe_.in.get(), bytes.data(), bytes.size());
    if (sent <= 0 || ::read(pipe_.out.get(), to, static_cast<std::size_t>(sent)) != sent) {
      return false;
    }
    bytes.remove_prefix(static_cast<std::size_t>(sent));
    to += sent;
  }
  return true;
}

}  // namespace hvd
