#include "tensorflow/tf_api.h"

#include <dlfcn.h>
#include <link.h>

#include <string_view>
#include <vector>

namespace hvd::tensorflow {

Api tf;

namespace {

std::vector<std::string> loaded_libraries() {
  std::vector<std::string> paths;
  ::dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* out) {
        const std::string_view path = info->dlpi_name != nullptr ? info->dlpi_name : "";
        if (path.find("tensorflow") != std::string_view::npos) {
          static_cast<std::vector<std::string>*>(out)->emplace_back(path);
        }
        return 0;
      },
      &paths);
  return paths;
}

}  // namespace

void* find_symbol(const char* name) {
  for (const std::string& path : loaded_libraries()) {
    // TensorFlow loads its libraries with local symbols, so ask each of them.
    void* library = ::dlopen(path.c_str(), RTLD_LAZY | RTLD_NOLOAD);
    if (library == nullptr) continue;
    void* symbol = ::dlsym(library, name);
    ::dlclose(library);
    if (symbol != nullptr) return symbol;
  }
  return nullptr;
}

std::string find_api() {
  std::string missing;
  const auto look_up = [&](const char* name) {
    void* symbol = find_symbol(name);
    if (symbol == nullptr) missing += (missing.empty() ? "" : " ") + std::string(name);
    return symbol;
  };
#define HVD_FIND(result, name, parameters) \
  tf.name = reinterpret_cast<result(*) parameters>(look_up("TF_" #name));
  HVD_TF_FUNCTIONS(HVD_FIND)
#undef HVD_FIND
  return missing;
}

}  // namespace hvd::tensorflow
