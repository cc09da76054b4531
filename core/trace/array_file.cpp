#include "trace/array_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace hvd {

namespace {

constexpr std::uint64_t kPage = 4096;

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

}  // namespace

Status ArrayFile::create(const std::string& path, std::unique_ptr<ArrayFile>& file) {
  Descriptor opened(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
  if (!opened) return failure(path, "opened for writing");
  struct stat about{};
  if (::fstat(opened.get(), &about) == 0 && !S_ISREG(about.st_mode)) {
    return Status::invalid_argument("'" + path + "' is not an ordinary file");
  }
  if (::ftruncate(opened.get(), 0) != 0) return failure(path, "emptied");
  constexpr std::string_view kStart = "[\n]";
  if (write_all(opened.get(), kStart, 0) != kStart.size()) return failure(path, "written");
  file.reset(new ArrayFile(path, std::move(opened)));
  file->end_ = 1;
  return Status::ok();
}

Status ArrayFile::append(std::string_view lines) {
  std::string group;
  const auto separator = [&] { return empty_ && group.empty() ? "\n" : ",\n"; };
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n'));
    lines.remove_prefix(std::min(line.size() + 1, lines.size()));
    const std::uint64_t bytes = group.size() + 2 + line.size() + kClose.size();
    const bool crosses = end_ / kPage != (end_ + bytes - 1) / kPage;
    if (crosses && !group.empty()) {
      if (Status status = write(group); !status.is_ok()) return status;
      group.clear();
    }
    group += separator();
    group += line;
    if (!crosses) continue;
    if (Status status = write(group); !status.is_ok()) return status;
    group.clear();
  }
  return group.empty() ? Status::ok() : write(group);
}

Status ArrayFile::write(std::string_view elements) {
  std::string bytes(elements);
  bytes += kClose;
  if (write_all(file_.get(), bytes, end_) == bytes.size()) {
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

}  // namespace hvd
