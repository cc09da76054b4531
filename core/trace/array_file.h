// ArrayFile: a JSON array in a file that is valid at every moment, whatever happens to the process.
//
// Every write ends with the closing bracket; the next one begins where that bracket stands. The kernel
// copies a write page by page and can be stopped by SIGKILL only between two pages, so writes stay
// within a page as far as elements allow. One that crosses into the next page is a write of its own: a
// kill in the some hundred nanoseconds between its two copies is the one moment without a bracket.
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
  // disk is full); it stays valid, without the first element that failed and those behind it.
  Status append(std::string_view lines);

  std::uint64_t size() const { return end_ + kClose.size(); }
  const std::string& path() const { return path_; }

 private:
  static constexpr std::string_view kClose = "\n]";

  ArrayFile(std::string path, Descriptor file) : path_(std::move(path)), file_(std::move(file)) {}
  Status write(std::string_view elements);

  std::string path_;
  Descriptor file_;
  std::uint64_t end_ = 0;  // where the closing bracket stands
  bool empty_ = true;
};

}  // namespace hvd
