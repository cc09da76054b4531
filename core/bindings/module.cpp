// horovod._core: the compiled engine as Python sees it. The only file that includes Python's headers.
// Everything here runs with the GIL unless it waits; the handle table is guarded by the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <pthread.h>

#include <cctype>
#include <memory>
#include <system_error>
#include <unordered_map>

#include "backends/native_table.h"
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
  take(values, "straggler_share", config.straggler_share, known);
  take(values, "flight_recorder_size", config.flight_recorder_size, known);
  take(values, "flight_recorder_dir", config.flight_recorder_dir, known);
  take(values, "timeline_path", config.timeline_path, known);
  take(values, "timeline_mark_cycles", config.timeline_mark_cycles, known);
  take(values, "timeline_all_ranks", config.timeline_all_ranks, known);
  take(values, "timeline_max_mb", config.timeline_max_mb, known);
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
  install_dump_signal(0, -1);
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
      if (!done && PyErr_CheckSignals() != 0) {
        running->stop_waiting(*handle);
        throw nb::python_error();
      }
    }
    running->stop_waiting(*handle);
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

// --- Seeing and tuning ----------------------------------------------------------------------------

double seconds(const auto& nanoseconds) { return static_cast<double>(nanoseconds.get()) * 1e-9; }

nb::dict dict_of(const Histogram& histogram) {
  const HistogramValues values = histogram.values();
  std::uint64_t count = 0;
  for (const std::uint64_t of_bucket : values.counts) count += of_bucket;
  nb::dict dict;
  dict["bounds"] = values.bounds;
  dict["counts"] = values.counts;
  dict["sum"] = values.sum;
  dict["count"] = count;
  return dict;
}

nb::dict by_kind(const std::array<Count, kCollectiveCount>& counts) {
  nb::dict dict;
  for (int kind = 0; kind < kCollectiveCount; ++kind) {
    std::string name(name_of(static_cast<Collective>(kind)));
    for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    dict[name.c_str()] = counts[static_cast<std::size_t>(kind)].get();
  }
  return dict;
}

nb::dict metrics() {
  const std::shared_ptr<Engine> running = engine();
  const Metrics& metrics = running->metrics();
  const auto counters = running->counters();
  nb::dict dict;
  dict["rank"] = running->topology().rank;
  dict["size"] = running->topology().size;
  dict["steps"] = running->steps();
  dict["operations"] = by_kind(metrics.operations);
  dict["bytes"] = by_kind(metrics.bytes);
  for (const char* name : {"operations_submitted", "operations_in_flight", "queue_depth",
                           "messages_sent", "flight_dumps"}) {
    dict[name] = counters.at(name);
  }
  dict["operations_failed"] = metrics.failed.get();
  dict["responses"] = metrics.responses.get();
  dict["cache_hits"] = metrics.cache_hits.get();
  dict["cache_misses"] = metrics.cache_misses.get();
  dict["stalls"] = metrics.stalls.get();
  dict["cycles"] = metrics.cycles.get();
  dict["wait_seconds"] = seconds(metrics.wait_nanoseconds);
  dict["data_wait_seconds"] = seconds(metrics.data_wait_nanoseconds);
  dict["execution_seconds"] = dict_of(metrics.execution_seconds);
  dict["negotiation_seconds"] = dict_of(metrics.negotiation_seconds);
  dict["tensors_per_response"] = dict_of(metrics.tensors_per_response);
  dict["response_bytes"] = dict_of(metrics.response_bytes);
  dict["straggler_seconds"] = running->straggler_seconds();
  return dict;
}

nb::dict tuning_sample() {
  const std::shared_ptr<Engine> running = engine();
  const Metrics& metrics = running->metrics();
  nb::dict dict;
  dict["bytes"] = metrics.global_bytes.get();
  dict["steps"] = running->steps();
  dict["cycles"] = metrics.cycles.get();
  dict["seconds"] =
      std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  return dict;
}

bool wait_for_steps(std::uint64_t count, double timeout_seconds) {
  const std::shared_ptr<Engine> running = process_engine();
  if (!running) return false;
  const nb::gil_scoped_release release;
  return running->wait_for_steps(
      count, std::chrono::nanoseconds(static_cast<std::int64_t>(timeout_seconds * 1e9)));
}

void require(const Status& status) {
  if (!status.is_ok()) raise(status);
}

void control_timeline(const std::string& path, bool mark_cycles) {
  const std::shared_ptr<Engine> running = engine();
  Status status;
  {
    const nb::gil_scoped_release release;
    status = running->control_timeline(path, mark_cycles);
  }
  require(status);
}

bool next_stack_request() {
  const std::shared_ptr<Engine> running = process_engine();
  if (!running) return false;
  const nb::gil_scoped_release release;
  return running->stacks().next_request();
}

void provide_stacks(std::string text) {
  if (const std::shared_ptr<Engine> running = process_engine()) {
    running->stacks().provide(std::move(text));
  }
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

  module.def("metrics", &metrics);
  module.def("algorithm_table", [] { return algorithm_table_text(); });
  module.def("tuning_sample", &tuning_sample);
  module.def("wait_for_steps", &wait_for_steps, "count"_a, "timeout_seconds"_a);
  module.def(
      "set_parameters",
      [](std::int64_t fusion_threshold_bytes, double cycle_time_ms, bool cache_enabled) {
        require(engine()->set_parameters(fusion_threshold_bytes, cycle_time_ms, cache_enabled));
      },
      "fusion_threshold_bytes"_a, "cycle_time_ms"_a, "cache_enabled"_a);
  module.def(
      "set_clock",
      [](double offset_micros, double error_micros) {
        require(engine()->set_clock(offset_micros, error_micros));
      },
      "offset_micros"_a, "error_micros"_a);
  module.def("control_timeline", &control_timeline, "path"_a, "mark_cycles"_a);
  module.def("next_stack_request", &next_stack_request);
  module.def("provide_stacks", &provide_stacks, "text"_a);
  module.def(
      "set_stack_handler",
      [](int signal, int file) { engine()->stacks().set_handler(signal, Descriptor(file)); },
      "signal"_a, "file"_a);
  module.def(
      "demand_flight_dump", [](const std::string& reason) { engine()->demand_dump(reason); },
      "reason"_a);
  module.def(
      "install_dump_signal",
      [](int signal) { return install_dump_signal(signal, engine()->wake_descriptor()); },
      "signal"_a);
}
