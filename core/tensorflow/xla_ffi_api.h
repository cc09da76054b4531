// The part of XLA's FFI (its C interface for custom calls) that is used here, declared anew so that no
// header of a framework is needed. Layouts are those of its versions 0.1 (TensorFlow 2.20) and 0.2 (2.21);
// a struct begins with its size, by which a library says how much of it it knows.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd::tensorflow::ffi {

struct Error;
struct Future;
struct Context;
struct Api;

struct Extension {
  std::size_t struct_size;
  std::int32_t type;
  Extension* next;
};
inline constexpr std::int32_t kMetadataExtension = 1;

struct Header {
  std::size_t struct_size;
  Extension* extensions;
};

struct Version {
  Header header;
  std::int32_t major;
  std::int32_t minor;
};

struct Text {
  const char* data;
  std::size_t size;
};

enum class ErrorCode : std::int32_t {
  kUnknown = 2,
  kInvalidArgument = 3,
  kFailedPrecondition = 9,
  kAborted = 10,
};

// --- What a handler is given ------------------------------------------------------------------------

inline constexpr std::int32_t kBufferItem = 1;     // of Buffers::types
inline constexpr std::int32_t kTextAttribute = 4;  // of Attributes::types

struct Buffer {
  Header header;
  std::int32_t dtype;
  void* data;
  std::int64_t rank;
  const std::int64_t* dims;
};

struct Buffers {
  Header header;
  std::int64_t count;
  const std::int32_t* types;
  Buffer* const* items;
};

struct Attributes {
  Header header;
  std::int64_t count;
  const std::int32_t* types;
  const Text* const* names;
  const void* const* values;
};

struct CallFrame {
  Header header;
  const Api* api;
  Context* context;
  std::int32_t stage;
  Buffers arguments;
  Buffers results;
  Attributes attributes;
  Future* future;  // what the handler leaves here completes the call; none: it is complete
};

using Handler = Error*(CallFrame*);

// A handler is first called with this extension, and in 0.1 without anything else, to say what it was written
// for.
struct Metadata {
  std::size_t struct_size;
  Version version;
  std::uint32_t traits;
};
struct MetadataExtension {
  Extension base;
  Metadata* metadata;
};

// --- What a handler may call --------------------------------------------------------------------------

struct ErrorCreate {
  Header header;
  const char* message;
  ErrorCode code;
};
struct ErrorMessage {
  Header header;
  Error* error;
  const char* message;  // out
};
struct ErrorDestroy {
  Header header;
  Error* error;
};
struct HandlerRegister {
  Header header;
  Text name;
  Text platform;
  Handler* instantiate;
  Handler* prepare;
  Handler* initialize;
  Handler* execute;
  std::uint32_t traits;
};
struct FutureCreate {
  Header header;
  Future* future;  // out
};
struct FutureSetAvailable {
  Header header;
  Future* future;
};
struct FutureSetError {
  Header header;
  Future* future;
  Error* error;  // is taken
};

struct Api {
  Header header;
  Version version;
  const void* internal;
  Error* (*error_create)(ErrorCreate*);
  void (*error_message)(ErrorMessage*);
  void (*error_destroy)(ErrorDestroy*);
  Error* (*handler_register)(HandlerRegister*);
  const void* unused[9];  // streams, types, state, device memory, thread pool
  Error* (*future_create)(FutureCreate*);
  Error* (*future_set_available)(FutureSetAvailable*);
  Error* (*future_set_error)(FutureSetError*);
  const void* unused_too[2];  // a table that has these has the others where they are here
};

// The arguments of a function of the table, with their header filled.
template <typename Arguments>
Arguments make_arguments() {
  Arguments arguments{};
  arguments.header.struct_size = sizeof(Arguments);
  return arguments;
}

}  // namespace hvd::tensorflow::ffi
