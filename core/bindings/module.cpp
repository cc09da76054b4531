// horovod._core: the compiled engine as Python sees it. The only file that includes Python's headers.
// Everything here runs with the GIL unless it waits; the handle table is guarded by the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>

#include <memory>
#include <system_error>
#include <unordered_map>

#include "c_api/c_api.h"
#include "c_api/process_engine.h"
#include "engine/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace {

using namespace hvd;

// --- The one engine of this process, and Python's handles -------------------------------------------

struct Handles {
  std::unordered_map<std::int64_t, std::shared_ptr<Handle>> of;
  std::int64_t next = 0;
};

// Never destroyed: threads of the program may outlive static destructors.
Handles& handles() {
  static auto& instance = *new Handles;
  return instance;
}

[[noreturn]] void raise(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotInitialized:
      throw nb::value_error(status.text().c_str());
    default: {
      const nb::object type =
          nb::module_::import_("horovod.common.exceptions").attr("HorovodInternalError");
      PyErr_SetString(type.ptr(), status.text().c_str());
      throw nb::python_error();
    }
  }
}

std::shared_ptr<Engine> engine() {
  std::shared_ptr<Engine> running = process_engine();
  if (!running) {
    raise(Status::not_initialized("Horovod has not been initialized; use hvd.init()."));
  }
  return running;
}

// --- Memory that the core allocated for an output -------------------------------------------------

class OutputBuffer {
 public:
  OutputBuffer(Buffer memory, std::size_t bytes) : memory_(std::move(memory)), bytes_(bytes) {}

  static int get_buffer(PyObject* self, Py_buffer* view, int flags) {
    auto* buffer = nb::inst_ptr<OutputBuffer>(self);
    return PyBuffer_FillInfo(view, self, buffer->memory_.get(),
                             static_cast<Py_ssize_t>(buffer->bytes_), 0, flags);
  }

 private:
  Buffer memory_;
  std::size_t bytes_;
};

PyType_Slot output_buffer_slots[] = {
    {Py_bf_getbuffer, reinterpret_cast<void*>(OutputBuffer::get_buffer)}, {0, nullptr}};

// --- From Python's plain values -------------------------------------------------------------------

template <class T>
void take(const nb::dict& values, const char* key, T& field, std::size_t& known) {
  if (!values.contains(key)) return;
  field = nb::cast<T>(values[key]);
  ++known;
}

Config config_from(const nb::dict& values) {
  Config config;
  std::size_t known = 0;
  take(values, "fusion_threshold_bytes", config.fusion_threshold_bytes, known);
  take(values, "cycle_time_ms", config.cycle_time_ms, known);
  take(values, "cache_capacity", config.cache_capacity, known);
  take(values, "disable_group_fusion", config.disable_group_fusion, known);
  take(values, "dynamic_process_sets", config.dynamic_process_sets, known);
  take(values, "stall_check", config.stall_check, known);
  take(values, "stall_warning_seconds", config.stall_warning_seconds, known);
  take(values, "stall_shutdown_seconds", config.stall_shutdown_seconds, known);
  take(values, "slot_bytes", config.slot_bytes, known);
  take(values, "slots", config.slots, known);
  take(values, "log_level", config.log_level, known);
  take(values, "log_hide_time", config.log_hide_time, known);
  take(values, "thread_affinity", config.thread_affinity, known);
  if (known != values.size()) {
    throw nb::value_error("_core: the configuration has a field that the core does not know");
  }
  return config;
}

Topology topology_from(const nb::dict& values) {
  Topology topology;
  topology.rank = nb::cast<Rank>(values["rank"]);
  topology.size = nb::cast<Rank>(values["size"]);
  topology.hosts = nb::cast<std::vector<std::vector<Rank>>>(values["hosts"]);
  topology.host_names = nb::cast<std::vector<std::string>>(values["host_names"]);
  topology.cores = nb::cast<int>(values["cores"]);
  return topology;
}

void start(const nb::dict& config, const nb::dict& topology, std::map<Rank, int> regions,
           std::map<Rank, int> doorbells, std::map<Rank, int> host_sockets,
           std::map<Rank, int> tree_sockets, Rank parent, std::vector<Rank> children) {
  static const int registered =
      ::pthread_atfork(nullptr, nullptr, [] { handles().of.clear(); });  // they are the parent's
  (void)registered;
  if (process_engine()) throw nb::value_error("_core: the engine has been started already");
  EngineParts parts{config_from(config),
                    topology_from(topology),
                    std::move(regions),
                    std::move(doorbells),
                    std::move(host_sockets),
                    std::move(tree_sockets),
                    parent,
                    std::move(children)};
  set_process_engine(std::make_shared<Engine>(std::move(parts)));
}

void shutdown() {
  const std::shared_ptr<Engine> running = process_engine();
  if (!running) return;
  {
    const nb::gil_scoped_release release;
    running->stop();
  }
  set_process_engine(nullptr);
  handles().of.clear();
}

// --- Operations -----------------------------------------------------------------------------------

// (pointer, dtype, shape), of which dtype may be a member of an enumeration.
struct TensorTuple {
  explicit TensorTuple(nb::handle tuple)
      : pointer(PyLong_AsUnsignedLongLong(nb::handle(tuple[0]).ptr())),
        dtype(PyLong_AsLong(nb::handle(tuple[1]).ptr())),
        shape(tuple[2]) {
    if (PyErr_Occurred() != nullptr) throw nb::python_error();
  }
  std::uintptr_t pointer;
  long dtype;
  nb::object shape;
};

std::int64_t submit(int kind, std::vector<std::string> names, const nb::sequence& inputs,
                    const std::optional<nb::sequence>& outputs, int op, double prescale,
                    double postscale, Rank root,
                    const std::optional<std::vector<std::int64_t>>& splits,
                    ProcessSetId process_set, const std::string& group, std::int32_t device,
                    bool cacheable, bool urgent, std::vector<Rank> ranks) {
  const std::shared_ptr<Engine> running = engine();
  Submission submission;
  submission.urgent = urgent;
  submission.requests.resize(names.size());
  submission.tensors.resize(names.size());
  const std::size_t tensor_count = nb::len(inputs);
  for (std::size_t i = 0; i < names.size(); ++i) {
    Request& request = submission.requests[i];
    request.kind = static_cast<Collective>(kind);
    request.name = std::move(names[i]);
    request.process_set = process_set;
    request.op = static_cast<ReduceOp>(op);
    request.root = root;
    request.device = device;
    request.prescale = prescale;
    request.postscale = postscale;
    request.group = group;
    request.group_size = group.empty() ? 0 : static_cast<std::int32_t>(submission.requests.size());
    request.cacheable = cacheable;
    request.ranks = ranks;
    if (request.kind == Collective::kRemoveProcessSet) request.target_set = root;
    if (i >= tensor_count) continue;  // join, barrier, process sets: no tensor
    const TensorTuple input(inputs[i]);
    WorkTensor& tensor = submission.tensors[i];
    tensor.input = reinterpret_cast<const void*>(input.pointer);
    request.dtype = static_cast<DataType>(input.dtype);
    request.shape.reserve(nb::len(input.shape));
    for (const nb::handle dimension : input.shape) {
      request.shape.push_back(nb::cast<std::int64_t>(dimension));
    }
    tensor.shape = request.shape;
    if (outputs) tensor.output = reinterpret_cast<void*>(TensorTuple((*outputs)[i]).pointer);
    if (splits) tensor.splits = *splits;
  }
  std::shared_ptr<Handle> handle;
  const Status status = running->submit(std::move(submission), handle);
  if (!status.is_ok()) raise(status);
  const std::int64_t id = handles().next++;
  handles().of.emplace(id, std::move(handle));
  return id;
}

std::shared_ptr<Handle> handle_of(std::int64_t id) {
  const auto found = handles().of.find(id);
  if (found == handles().of.end()) {
    throw nb::value_error("_core: this handle is not known; it may have been waited for already");
  }
  return found->second;
}

bool poll(std::int64_t id) {
  const std::shared_ptr<Handle> handle = handle_of(id);
  const std::shared_ptr<Engine> running = process_engine();
  return running ? running->poll(*handle) : handle->is_done();
}

void mark_urgent(std::int64_t id) { engine()->mark_urgent(*handle_of(id)); }

nb::object output_of(Result& result) {
  nb::list shape;
  for (const std::int64_t dimension : result.shape) shape.append(dimension);
  nb::object splits = nb::none();
  if (!result.received_splits.empty()) {
    nb::list rows;
    for (const std::int64_t row : result.received_splits) rows.append(row);
    splits = std::move(rows);
  }
  nb::object buffer =
      nb::cast(OutputBuffer(std::move(result.buffer), result.bytes), nb::rv_policy::move);
  return nb::make_tuple(std::move(buffer), nb::tuple(shape), std::move(splits));
}

nb::object wait(std::int64_t id) {
  const std::shared_ptr<Handle> handle = handle_of(id);
  if (const std::shared_ptr<Engine> running = process_engine()) {
    while (!handle->is_done()) {
      bool done = false;
      {
        const nb::gil_scoped_release release;
        done = running->wait(*handle);
      }
      if (!done && PyErr_CheckSignals() != 0) throw nb::python_error();
    }
  }
  handles().of.erase(id);
  if (!handle->status().is_ok()) raise(handle->status());
  nb::list outputs;
  for (Result& result : handle->results) {
    if (result.buffer) outputs.append(output_of(result));  // not where the caller gave the memory
  }
  return nb::make_tuple(std::move(outputs), handle->value);
}

std::optional<Rank> next_connection_request() {
  const std::shared_ptr<Engine> running = process_engine();
  if (!running) return std::nullopt;
  const nb::gil_scoped_release release;
  return running->links().next_request();
}

std::optional<std::string> abort_text() {
  const std::shared_ptr<Engine> running = process_engine();
  if (!running || running->is_running()) return std::nullopt;
  return running->status().text();
}

}  // namespace

NB_MODULE(_core, module) {
  nb::set_leak_warnings(false);
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const std::system_error& system) {
      PyErr_SetString(PyExc_OSError, system.what());
    }
  });
  nb::class_<OutputBuffer>(module, "OutputBuffer", nb::type_slots(output_buffer_slots));

  module.def("region_bytes",
             [](const nb::dict& config) { return Region::bytes_needed(config_from(config)); });
  module.def("start", &start, "config"_a, "topology"_a, "regions"_a, "doorbells"_a,
             "host_sockets"_a, "tree_sockets"_a, "parent"_a, "children"_a);
  module.def("shutdown", &shutdown);
  module.def("is_running", [] {
    const std::shared_ptr<Engine> running = process_engine();
    return running && running->is_running();
  });
  // The address of the table behind c_api/horovod.h, for what is loaded separately.
  module.def("c_api", [] { return reinterpret_cast<std::uintptr_t>(c_api()); });
  module.def("abort_text", &abort_text);
  module.def("next_connection_request", &next_connection_request);
  module.def("provide_connection", [](Rank peer, int descriptor) {
    engine()->links().provide(peer, Descriptor(descriptor));
  });
  module.def("connection_failed",
             [](Rank peer, const std::string& text) { engine()->links().fail(peer, text); });
  module.def("submit", &submit, "kind"_a, "names"_a, "inputs"_a, "outputs"_a.none(), "op"_a,
             "prescale"_a, "postscale"_a, "root"_a, "splits"_a.none(), "process_set"_a, "group"_a,
             "device"_a, "cacheable"_a, "urgent"_a, "ranks"_a);
  module.def("poll", &poll);
  module.def("wait", &wait);
  module.def("urgent", &mark_urgent);
  module.def("process_sets", [] { return engine()->process_sets(); });
  module.def("counters", [] { return engine()->counters(); });
}
