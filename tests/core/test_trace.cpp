// The trace layer: JSON, the file that is valid at every moment, rows of a timeline, metrics, flight recorder.
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <thread>
#include <vector>

#include "testing.h"
#include "trace/array_file.h"
#include "trace/flight_recorder.h"
#include "trace/json.h"
#include "trace/metrics.h"
#include "trace/timeline.h"

using namespace hvd;
using namespace std::chrono_literals;

namespace {

class Folder {
 public:
  Folder() {
    char name[] = "/tmp/horovod-trace-XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~Folder() {
    for (const char* file : {"t.json", "t.json.1"}) ::unlink((path_ + "/" + file).c_str());
    ::rmdir(path_.c_str());
  }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

std::vector<std::string> elements(const std::string& text) {
  REQUIRE(text.starts_with("[\n"));
  REQUIRE(text.ends_with("\n]"));
  std::vector<std::string> lines;
  std::istringstream in(text.substr(2, text.size() - 4));
  for (std::string line; std::getline(in, line);) {
    if (line.ends_with(",")) line.pop_back();
    lines.push_back(line);
  }
  return lines;
}

// The letters and names of a row's events in file order: "B NEGOTIATE_ALLREDUCE", "X 0", "E".
std::vector<std::string> events(const std::string& text, int pid) {
  std::vector<std::string> found;
  const std::string wanted = "\"pid\":" + std::to_string(pid);
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const auto at = line.find(wanted);
    if (at == std::string::npos ||
        std::isdigit(static_cast<unsigned char>(line[at + wanted.size()])))
      continue;
    const std::string phase(1, line[line.find("\"ph\":\"") + 6]);
    if (phase == "M") continue;
    const auto name = line.find("\"name\":\"");
    std::string event = phase;
    if (name != std::string::npos && phase != "E") {
      event += " " + line.substr(name + 8, line.find('"', name + 8) - name - 8);
    }
    found.push_back(event);
  }
  return found;
}

TensorTrace trace(TracePoint time, std::string name, decltype(TensorTrace::what) what,
                  Collective kind = Collective::kAllreduce) {
  return {time, kGlobalProcessSet, std::move(name), kind, std::move(what)};
}

TraceExecuted executed(TracePoint started, TracePoint finished) {
  TraceExecuted what;
  what.started = started;
  what.finished = finished;
  what.shape = {3, 4};
  what.bytes = 48;
  return what;
}

using Lines = std::vector<std::string>;

}  // namespace

TEST_CASE("strings become JSON whatever they hold") {
  CHECK(json::quoted("a \"b\" \\ c") == R"("a \"b\" \\ c")");
  CHECK(json::quoted("line\nend\r\ttab") == R"("line\nend\r\ttab")");
  CHECK(json::quoted(std::string("\x01\x1f\x7f\0", 4)) == R"("\u0001\u001f\u007f\u0000")");
  CHECK(json::quoted("Gewicht/ß/重み/🙂") == "\"Gewicht/ß/重み/🙂\"");
  const std::string replaced = "\"\xef\xbf\xbd\"";
  for (const char* broken : {"\xff", "\xc0", "\x80"}) CHECK(json::quoted(broken) == replaced);
  CHECK(json::quoted("\xed\xa0\x80") == "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\"");  // a surrogate
  CHECK(json::quoted("\xe2\x82") == "\"\xef\xbf\xbd\xef\xbf\xbd\"");                  // cut off
}

TEST_CASE("numbers become JSON") {
  std::string out;
  json::append_thousandths(out, 1234567);
  out += ' ';
  json::append_thousandths(out, 5);
  out += ' ';
  json::append_thousandths(out, -1500);
  out += ' ';
  json::append_number(out, 0.1);
  out += ' ';
  json::append_number(out, 1.0 / 0.0);
  out += ' ';
  json::append_list(out, std::vector<std::int64_t>{3, -4});
  CHECK(out == "1234.567 0.005 -1.500 0.1 null [3, -4]");
}

TEST_CASE("an array file is complete after each append, across pages too") {
  const Folder folder;
  std::unique_ptr<ArrayFile> file;
  REQUIRE(ArrayFile::create(folder.file("t.json"), file).is_ok());
  CHECK(content(folder.file("t.json")) == "[\n]");
  Lines expected;
  for (int i = 0; i < 300; ++i) {
    const std::string element =
        "{\"n\":\"" + std::string(static_cast<std::size_t>(i * 7 % 400), 'x') + "\"}";
    expected.push_back(element);
    REQUIRE(file->append(element + "\n").is_ok());
    if (i % 50 == 0) CHECK(elements(content(folder.file("t.json"))) == expected);
  }
  std::string many;
  for (int i = 0; i < 500; ++i) {
    expected.push_back("{\"i\":" + std::to_string(i) + "}");
    many += expected.back() + "\n";
  }
  expected.push_back("{\"long\":\"" + std::string(20000, 'y') + "\"}");
  REQUIRE(file->append(many + expected.back() + "\n").is_ok());
  CHECK(elements(content(folder.file("t.json"))) == expected);
  CHECK(file->size() == content(folder.file("t.json")).size());
}

TEST_CASE("an array file is complete whenever its process is killed") {
  const Folder folder;
  std::minstd_rand chance(7);
  for (int kill = 0; kill < 200; ++kill) {
    int started[2];
    REQUIRE(::pipe(started) == 0);
    const pid_t child = ::fork();
    if (child == 0) {
      std::unique_ptr<ArrayFile> file;
      if (!ArrayFile::create(folder.file("t.json"), file).is_ok()) ::_exit(1);
      const std::string element =
          "{\"n\":\"" + std::string(kill % 2 == 0 ? 300 : 3000, 'x') + "\"}\n";
      while (file->append(element + element).is_ok()) {
        if (::write(started[1], "!", 1) != 1) break;
      }
      ::_exit(1);
    }
    char one = 0;
    REQUIRE(::read(started[0], &one, 1) == 1);
    std::this_thread::sleep_for(std::chrono::microseconds(chance() % 1000));
    ::kill(child, SIGKILL);
    int ended = 0;
    REQUIRE(::waitpid(child, &ended, 0) == child);
    CHECK(WIFSIGNALED(ended));
    ::close(started[0]);
    ::close(started[1]);
    std::string text = content(folder.file("t.json"));
    text.erase(text.find_last_not_of(' ') + 1);
    const Lines found = elements(text);
    CHECK(found.size() >= 2);
    CHECK(std::set(found.begin(), found.end()).size() == 1);
  }
}

TEST_CASE("a file that can't be written is refused with its name and the reason") {
  const Folder folder;
  std::unique_ptr<ArrayFile> file;
  const Status missing = ArrayFile::create(folder.file("none/t.json"), file);
  CHECK(missing.text() == "'" + folder.file("none/t.json") +
                              "' can't be opened for writing: No such file or directory");
  const Status directory = ArrayFile::create(folder.file(""), file);
  CHECK(directory.text().find("Is a directory") != std::string::npos);
  const Status device = ArrayFile::create("/dev/null", file);
  CHECK(device.text() == "'/dev/null' is not an ordinary file");
}

TEST_CASE("a row shows negotiation, queue, execution and the wait for data, nested") {
  TimelineRows rows({0, 2, {"a", "b"}});
  const TracePoint t0{1000s};
  std::string out;
  rows.begin_file(out, t0, 77);
  CHECK(
      out.find(
          R"("start_time_since_epoch_in_micros":77,"rank":0,"size":2,"host":"a","hosts":["a","b"])") !=
      std::string::npos);
  rows.add(out, trace(t0 + 1us, "g", TraceAnnounced{0, 1}));
  rows.add(out, trace(t0 + 2us, "g", TraceAnnounced{1, 1}));
  rows.add(out, trace(t0 + 3us, "g", TraceAgreed{}));
  TraceExecuted what = executed(t0 + 4us, t0 + 9us);
  what.wait_began = t0 + 5us;
  what.waited = 1us;
  rows.add(out, trace(t0 + 9us, "g", what));
  CHECK(events(out, 1) ==
        Lines({"B NEGOTIATE_ALLREDUCE", "X 0", "X 1", "E", "B ALLREDUCE", "B QUEUE", "E",
               "B GLOO_ALLREDUCE", "B WAIT_FOR_DATA", "E", "E", "E"}));
  CHECK(
      out.find(
          R"({"ph":"E","ts":9.000,"pid":1,"args":{"dtype":"float32","shape":"[3, 4]","bytes":48,"fused":1,"response":0}})") !=
      std::string::npos);
}

TEST_CASE("what another rank announces for the next round waits until the row is free") {
  TimelineRows rows({0, 2, {"a", "a"}});
  const TracePoint t0{1000s};
  std::string out;
  rows.begin_file(out, t0, 0);
  rows.add(out, trace(t0 + 1us, "g", TraceAnnounced{0, 2}));
  rows.add(out, trace(t0 + 2us, "g", TraceAgreed{}));
  rows.add(out, trace(t0 + 3us, "g", TraceAnnounced{1, 1}));
  rows.add(out, trace(t0 + 8us, "g", executed(t0 + 2us, t0 + 8us)));
  rows.add(out, trace(t0 + 9us, "g", TraceFailed{"ranks disagree"}));
  CHECK(events(out, 1) ==
        Lines({"B NEGOTIATE_ALLREDUCE", "X 0", "X 1", "E", "B ALLREDUCE", "B QUEUE", "E",
               "B GLOO_ALLREDUCE", "E", "E", "B NEGOTIATE_ALLREDUCE", "X 1", "E", "B ERROR", "E"}));
  CHECK(out.find(R"("args":{"text":"ranks disagree"})") != std::string::npos);
}

TEST_CASE(
    "an operation without data has no activities; a timeline may begin in the middle of one") {
  TimelineRows rows({0, 1, {"a"}});
  const TracePoint t0{1000s};
  std::string out;
  rows.begin_file(out, t0, 0);
  rows.add(out, trace(t0, "late", executed(t0, t0 + 1us)));
  rows.add(out, trace(t0, "b", TraceAnnounced{0, 1}, Collective::kBarrier));
  rows.add(out, trace(t0, "b", TraceAgreed{false}, Collective::kBarrier));
  CHECK(events(out, 1) == Lines({"B NEGOTIATE_BARRIER", "X 0", "E", "B BARRIER", "E"}));
}

TEST_CASE("rows that are open when a file ends are closed in it and opened in the next") {
  TimelineRows rows({0, 1, {"a"}});
  const TracePoint t0{1000s};
  std::string first, second;
  rows.begin_file(first, t0, 0);
  rows.add(first, trace(t0, "n", TraceAnnounced{0, 1}));
  rows.add(first, trace(t0, "e", TraceAnnounced{0, 1}));
  rows.add(first, trace(t0, "e", TraceAgreed{}));
  rows.end_file(first, t0 + 5us);
  CHECK(events(first, 1) == Lines({"B NEGOTIATE_ALLREDUCE", "X 0", "E"}));
  CHECK(events(first, 2) ==
        Lines({"B NEGOTIATE_ALLREDUCE", "X 0", "E", "B ALLREDUCE", "B QUEUE", "E", "E"}));
  rows.begin_file(second, t0 + 6us, 6);
  rows.add(second, trace(t0 + 7us, "n", TraceAgreed{}));
  rows.add(second, trace(t0 + 8us, "e", executed(t0 + 7us, t0 + 8us)));
  rows.end_file(second, t0 + 9us);
  std::map<std::string, int> seen;
  for (const int pid : {1, 2}) {
    std::string all;
    for (const std::string& event : events(second, pid)) all += event + ";";
    ++seen[all];
  }
  CHECK(seen["B NEGOTIATE_ALLREDUCE;E;B ALLREDUCE;B QUEUE;E;E;"] == 1);
  CHECK(seen["B ALLREDUCE;B QUEUE;E;B GLOO_ALLREDUCE;E;E;"] == 1);
}

TEST_CASE("a timeline writes in its own thread, rotates at its limit, and starts anew") {
  const Folder folder;
  Timeline timeline;
  timeline.record(CycleTrace{std::chrono::steady_clock::now()});  // dropped
  TimelineOptions options{folder.file("t.json"), true, 20000, {0, 1, {"a"}}};
  REQUIRE(timeline.start(options).is_ok());
  CHECK(timeline.marks_cycles());
  CHECK(timeline.start(options).is_ok());  // the same: nothing happens
  for (int i = 0; i < 1000; ++i) {
    timeline.record(StepTrace{std::chrono::steady_clock::now(), static_cast<std::uint64_t>(i)});
  }
  timeline.stop();
  CHECK_FALSE(timeline.active());
  const std::string now = content(folder.file("t.json"));
  const std::string former = content(folder.file("t.json.1"));
  CHECK(now.size() <= 21000);
  CHECK(former.size() <= 21000);
  CHECK(elements(former).size() > 10);
  CHECK(elements(now).back().find(R"("step":999)") != std::string::npos);
  REQUIRE(timeline.start(options).is_ok());
  timeline.stop();
  CHECK(elements(content(folder.file("t.json"))).size() == 2);
  options.path = "/none/t.json";
  CHECK_FALSE(timeline.start(options).is_ok());
}

TEST_CASE("a histogram counts a value in the first bucket whose bound is not below it") {
  Histogram histogram(10, 1, 0.5);
  for (const std::uint64_t value : {0, 1, 10, 11, 20, 21}) histogram.add(value);
  histogram.add(std::uint64_t{1} << 40);
  const HistogramValues values = histogram.values();
  CHECK(values.bounds[0] == 5.0);
  CHECK(values.bounds[1] == 10.0);
  CHECK(values.counts[0] == 3);
  CHECK(values.counts[1] == 2);
  CHECK(values.counts[2] == 1);
  CHECK(values.counts.back() == 1);
  CHECK(values.counts.size() == values.bounds.size() + 1);
  CHECK(values.sum == (63.0 + static_cast<double>(std::uint64_t{1} << 40)) / 2);
  Histogram coarse(1000, 2, 1);
  for (const std::uint64_t value : {1000, 1001, 4000, 4001}) coarse.add(value);
  CHECK(coarse.values().counts[0] == 1);
  CHECK(coarse.values().counts[1] == 2);
  CHECK(coarse.values().counts[2] == 1);
}

TEST_CASE("the flight recorder keeps the last operations and how far they came") {
  FlightRecorder recorder(3);
  const auto t = FlightRecorder::TimePoint(5s);
  std::vector<std::uint64_t> serials;
  for (const char* name : {"a", "b", "c", "d"}) {
    Request request;
    request.name = name;
    request.process_set = *name == 'c' ? 1 : 0;
    request.shape = {2};
    serials.push_back(recorder.submitted(request, t));
  }
  recorder.finished(serials[0], t, "");  // forgotten meanwhile
  recorder.agreed(serials[1], 7, t + 1s);
  recorder.started(serials[1], t + 2s);
  recorder.finished(serials[1], t + 3s, "");
  recorder.announced(serials[3]);
  recorder.finished(serials[2], t + 1s, "ranks \"disagree\"");
  const auto records = recorder.records();
  REQUIRE(records.size() == 3);
  CHECK(records[0].request.name == "b");
  CHECK(records[0].response == 7);
  CHECK(records[1].set_serial == 0);
  CHECK(records[2].set_serial == 2);
  CHECK(recorder.recorded() == 4);
  const std::string text = flight_dump_text(
      recorder, {1, {"x", "y"}, "call", "why", {{"d", t}}, "stack", {{0, {0, 1}}, {3, {1}}}});
  CHECK(text.find(R"("rank":1,"size":2,"host":"y","hosts":["x","y"],)") != std::string::npos);
  CHECK(text.find(
            R"("state":"done","submitted":5,"agreed":6,"started":7,"finished":8,"response":7})") !=
        std::string::npos);
  CHECK(text.find(R"("error":"ranks \"disagree\"")") != std::string::npos);
  CHECK(text.find(R"("name":"d","kind":"allreduce")") != std::string::npos);
  CHECK(text.find(R"("state":"announced")") != std::string::npos);
  CHECK(text.find(R"("blocked":[{"name":"d","since":5}])") != std::string::npos);
}

TEST_CASE("a flight recorder of no size remembers nothing and still counts") {
  FlightRecorder recorder(0);
  recorder.finished(recorder.submitted({}, {}), {}, "");
  CHECK(recorder.records().empty());
  CHECK(recorder.recorded() == 1);
}
