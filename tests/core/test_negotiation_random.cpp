// Random jobs on random trees: whatever the order of submissions and deliveries, all ranks see one
// log, every operation executes once with all members or fails on all of them, and nothing is left.
#include <algorithm>
#include <random>

#include "negotiation_simulation.h"
#include "negotiation_world.h"
#include "testing.h"

using namespace hvd;
using namespace hvd::samples;

namespace {

// Writes the programs of all ranks: rounds of collectives over overlapping sets.
class Program {
 public:
  Program(Simulation& simulation, std::uint64_t seed) : simulation_(simulation), random_(seed) {}

  void write() {
    add_set(0);
    if (coin()) add_set(1);
    for (std::size_t round = 2 + below(4); round > 0; --round) {
      begin_round();
      switch (below(6)) {
        case 0:
          join_round();
          break;
        case 1:
          if (members_.empty()) break;
          replace_set(below(members_.size()));
          break;
        default:
          ordinary_round();
      }
      shuffle();
    }
  }

 private:
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }
  bool coin() { return below(2) == 0; }
  std::size_t size() const { return simulation_.size(); }

  void begin_round() { blocks_.assign(size(), {}); }
  void add(std::size_t rank, std::vector<Step> together) {
    for (std::size_t i = 0; i + 1 < together.size(); ++i) together[i].with_next = true;
    blocks_[rank].push_back(std::move(together));
  }
  // Every rank gets its blocks in an order of its own; those that must come last stay last.
  void shuffle() {
    for (std::size_t r = 0; r < size(); ++r) {
      const bool keep_last =
          !blocks_[r].empty() && blocks_[r].back().front().request.kind == Collective::kJoin;
      std::shuffle(blocks_[r].begin(), blocks_[r].end() - (keep_last ? 1 : 0), random_);
      auto& round = simulation_.rank(r).rounds.emplace_back();
      for (auto& block : blocks_[r]) round.insert(round.end(), block.begin(), block.end());
    }
  }

  std::vector<std::size_t> members_of(int slot) const {
    if (slot >= 0) return members_[static_cast<std::size_t>(slot)];
    std::vector<std::size_t> everybody(size());
    for (std::size_t r = 0; r < size(); ++r) everybody[r] = r;
    return everybody;
  }

  Request random_request(const std::string& name) {
    constexpr Collective kKinds[] = {Collective::kAllreduce, Collective::kAllreduce,
                                     Collective::kAllreduce, Collective::kAllgather,
                                     Collective::kBroadcast, Collective::kBarrier};
    Request r = make_request(kKinds[below(std::size(kKinds))], name,
                             {static_cast<std::int64_t>(1 + below(2)), 2});
    r.dtype = below(3) == 0 ? DataType::kFloat64 : DataType::kFloat32;
    r.postscale = below(5) == 0 ? 0.5 : 1.0;
    r.root = r.kind == Collective::kBroadcast ? 0 : -1;
    r.cacheable = below(6) != 0;
    return r;
  }

  // The same for all members, but for the rows of allgather and for one rank that is wrong.
  void add_tensor(int slot, const Request& common) {
    const std::vector<std::size_t> members = members_of(slot);
    const bool wrong = members.size() > 1 && common.kind != Collective::kBarrier && below(8) == 0;
    const std::size_t culprit = members[below(members.size())];
    for (const std::size_t r : members) {
      Step step{common, slot, wrong ? Ending::kFailed : Ending::kExecuted};
      if (common.kind == Collective::kAllgather) step.request.shape[0] = 1 + std::int64_t(below(5));
      if (wrong && r == culprit) step.request.shape[1] = 99;
      add(r, {step});
    }
  }

  void add_group(int slot, const std::string& prefix) {
    const auto count = static_cast<std::int32_t>(2 + below(2));
    const std::vector<std::size_t> members = members_of(slot);
    const bool wrong = members.size() > 1 && below(5) == 0;
    const std::size_t culprit = members[below(members.size())];
    for (const std::size_t r : members) {
      std::vector<Step> steps;
      for (std::int32_t i = 0; i < count; ++i) {
        Step step{in_group(allreduce(prefix + std::to_string(i), {4}), prefix, count), slot,
                  wrong ? Ending::kFailed : Ending::kExecuted};
        if (wrong && r == culprit && i == 1) step.request.dtype = DataType::kInt8;
        steps.push_back(std::move(step));
      }
      std::shuffle(steps.begin(), steps.end(), random_);
      add(r, std::move(steps));
    }
  }

  void ordinary_round() {
    for (int slot = -1; slot < static_cast<int>(members_.size()); ++slot) {
      for (const char* name : {"a", "b", "c", "d", "e"}) {
        if (coin()) add_tensor(slot, random_request(name));
      }
      if (below(3) == 0) add_group(slot, "g");
    }
  }

  // Each rank takes part in some of the operations and then joins, perhaps before they are done.
  void join_round() {
    for (const char* name : {"a", "b", "c", "d"}) {
      Request request = random_request(name);
      const bool data_only =
          request.kind != Collective::kAllreduce && request.kind != Collective::kBarrier;
      for (std::size_t r = 0; r < size(); ++r) {
        if (below(3) == 0) continue;
        add(r, {{request, -1, data_only ? Ending::kEither : Ending::kExecuted}});
      }
    }
    if (!members_.empty()) add_tensor(0, random_request("a"));
    for (std::size_t r = 0; r < size(); ++r) {
      std::shuffle(blocks_[r].begin(), blocks_[r].end(), random_);
      Request join = make_request(Collective::kJoin, "join", {});
      join.cacheable = false;
      add(r, {{join}});
    }
  }

  void add_set(std::size_t slot) {
    if (size() < 2) return;
    if (members_.size() <= slot) members_.resize(slot + 1);
    members_[slot].clear();
    std::vector<std::size_t> chosen;
    do {
      chosen.clear();
      for (std::size_t r = 0; r < size(); ++r) {
        if (coin()) chosen.push_back(r);
      }
    } while (chosen.empty() || chosen.size() == size() ||
             std::count(members_.begin(), members_.end(), chosen) > 0);
    members_[slot] = chosen;
    Request request = make_request(Collective::kAddProcessSet, "add", {});
    request.cacheable = false;
    request.ranks.assign(chosen.begin(), chosen.end());
    begin_round();
    for (std::size_t r = 0; r < size(); ++r) {
      add(r, {{request, -1, Ending::kExecuted, false, static_cast<int>(slot)}});
    }
    shuffle();
    begin_round();
  }

  // Removes a set, with something of one member pending in it, and adds another in its place.
  void replace_set(std::size_t slot) {
    Request request = make_request(Collective::kRemoveProcessSet, "remove", {});
    request.cacheable = false;
    const std::vector<std::size_t> members = members_[slot];
    const std::size_t lonely = members[below(members.size())];
    for (std::size_t r = 0; r < size(); ++r) {
      std::vector<Step> steps;
      if (r == lonely && members.size() > 1) {
        steps.push_back({allreduce("a"), static_cast<int>(slot), Ending::kFailed});
      }
      steps.push_back({request, static_cast<int>(slot)});
      if (steps.size() == 2) steps[0].with_next = true;
      add(r, std::move(steps));
    }
    for (const char* name : {"a", "b"}) add_tensor(-1, random_request(name));
    shuffle();
    add_set(slot);
  }

  Simulation& simulation_;
  std::mt19937_64 random_;
  std::vector<std::vector<std::size_t>> members_;       // of each slot
  std::vector<std::vector<std::vector<Step>>> blocks_;  // of this round, by rank
};

std::vector<Rank> random_tree(std::mt19937_64& random) {
  const auto size = static_cast<Rank>(1 + random() % 9);
  std::vector<Rank> parents{-1};
  const auto shape = random() % 4;
  for (Rank r = 1; r < size; ++r) {
    switch (shape) {
      case 0:
        parents.push_back(0);  // star
        break;
      case 1:
        parents.push_back(r - 1);  // chain
        break;
      case 2:
        parents.push_back((r - 1) / 2);
        break;
      default:
        parents.push_back(static_cast<Rank>(random() % static_cast<std::uint64_t>(r)));
    }
  }
  return parents;
}

Config random_config(std::mt19937_64& random) {
  const auto pick = [&random](std::vector<std::int64_t> values) {
    return values[random() % values.size()];
  };
  Config config;
  config.cache_capacity = pick({0, 1, 2, 3, 8, 1024});
  config.fusion_threshold_bytes = pick({0, 16, 64, 1 << 20});
  config.cycle_time_ms = static_cast<double>(pick({0, 1, 20}));
  config.disable_group_fusion = pick({0, 1}) == 1;
  config.stall_warning_seconds = 1e7;
  return config;
}

void run_schedule(std::uint64_t seed) {
  INFO("seed ", seed);
  std::mt19937_64 random(seed);
  const std::vector<Rank> tree = random_tree(random);
  const Config config = random_config(random);
  constexpr std::chrono::microseconds kHolds[] = {0us, 300us, 50ms};
  Simulation simulation(tree, config, kHolds[random() % 3], seed);
  Program(simulation, seed + 1).write();
  std::optional<int> shutdown_at;
  if (seed % 8 == 0) shutdown_at = static_cast<int>(random() % 300);
  simulation.run(shutdown_at);
  REQUIRE(simulation.fault() == "");
  REQUIRE(simulation.all_done());
  REQUIRE(simulation.nothing_left());
  if (shutdown_at) return;
  simulation.ask_for_shutdown(random() % simulation.size());
  simulation.run(std::nullopt);
  REQUIRE(simulation.fault() == "");
  for (std::size_t r = 0; r < simulation.size(); ++r) REQUIRE(simulation.rank(r).ended);
}

}  // namespace

TEST_CASE("thousands of random schedules end well") {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) run_schedule(seed);
}
