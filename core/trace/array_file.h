// ArrayFile: a JSON array in a file that is valid at every moment, whatever happens to the process.
//
// The closing bracket must move on with every write, at one go. A write to a file does not do that: the
// kernel copies page by page, and SIGKILL stops it between two. So the file is first made longer by
// white space, which may stand behind the bracket; then its end is mapped into memory, and the elements
// are read into it from a pipe. The kernel copies what it reads without looking at signals, over any
// number of pages, and tells of a disk that can't take it by an error where a store would be fatal.
//
// Two things are written in several goes, and a kill in between cuts the file there: an element larger
// than a pipe (64 KiB), and all of them where files can't be mapped (some network file systems).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/descriptor.h"
#include "base/status.h"

namespace hvd {

class ArrayFile {
 public:
  // Creates the file, or empties it. Not ok: a text with path and reason; nothing was changed.
  static Status create(const std::string& path, std::unique_ptr<ArrayFile>& file);

  // `lines`: elements, each one line that ends with a newline. Not ok: the file can't take them (the
  // disk is full); it stays valid, and ends before the first element that found no room, or earlier.
  Status append(std::string_view lines);

  // Not ok: it can't have that name; it keeps the one it has.
  Status rename(const std::string& path);
  // The two files get each other's names at one go, if the file system can do that (NFS can't).
  void exchange_names(ArrayFile& other);

  std::uint64_t size() const { return end_ + kClose.size(); }
  const std::string& path() const { return path_; }

 private:
  static constexpr std::string_view kClose = "\n]";

  struct Pipe {
    Descriptor out;
    Descriptor in;
  };

  ArrayFile(std::string path, Descriptor file, Pipe pipe)
      : path_(std::move(path)), file_(std::move(file)), pipe_(std::move(pipe)) {}

  Status write(std::string_view elements);
  // Both: false: it failed, and errno says why.
  bool replace_end(std::string_view bytes);     // of a file that is long enough already
  bool copy(char* to, std::string_view bytes);  // at one go if the pipe holds them

  std::string path_;
  Descriptor file_;
  Pipe pipe_;
  std::uint64_t end_ = 0;  // where the closing bracket stands
  bool empty_ = true;
};

}  // namespace hvd
