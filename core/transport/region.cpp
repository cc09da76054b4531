#include "transport/region.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <system_error>

#include "transport/arena.h"

namespace hvd {

std::size_t Region::bytes_needed(const Config& config) {
  return lane_ + ((Arena::lane_bytes(config) + 4095) & ~4095ul);
}

Region::Region(int memory_file, const Config& config) : bytes_(bytes_needed(config)) {
  struct stat file{};
  if (::fstat(memory_file, &file) != 0) {
    throw std::system_error(errno, std::generic_category(), "shared memory of a host peer");
  }
  if (static_cast<std::size_t>(file.st_size) < bytes_) {
    throw std::system_error(EINVAL, std::generic_category(),
                            "shared memory of a host peer has " + std::to_string(file.st_size) +
                                " bytes, expected " + std::to_string(bytes_) +
                                "; set the same HOROVOD_ARENA_* values on all ranks of the host");
  }
  void* mapped = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, memory_file, 0);
  if (mapped == MAP_FAILED) {
    throw std::system_error(errno, std::generic_category(), "mapping shared memory of a host peer");
  }
  base_ = static_cast<std::byte*>(mapped);
}

Region::~Region() { ::munmap(base_, bytes_); }

}  // namespace hvd
