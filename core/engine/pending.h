// PendingTable: the operations that the root has heard of and not yet put into the log, by name and
// in the order in which they were first heard of.
#pragma once

#include <array>
#include <chrono>
#include <list>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/agreement.h"
#include "engine/name_view.h"

namespace hvd {

enum class Stage : std::uint8_t {
  kIncomplete,  // ranks are missing
  kReported,    // the same, and a stall report has covered it
  kGrouped,     // complete, but other members of its group are not
  kReady,       // will be in the log with the next flush
};
inline constexpr std::size_t kStageCount = 4;

struct Pending {
  std::vector<Variant> variants;  // what was announced; never empty
  RankSet announced;              // all ranks of all variants
  std::chrono::steady_clock::time_point since;
  std::chrono::steady_clock::time_point latest;        // announcement
  std::chrono::steady_clock::time_point urgent_since;  // valid if `urgent`
  std::optional<CacheId> cached;       // the id its name has, perhaps with another signature
  std::optional<std::string> failure;  // complete, but the ranks disagree
  bool urgent = false;
  bool cacheable = true;
  Stage stage = Stage::kIncomplete;
  std::list<Pending>::iterator self;

  void clear();  // keeps its memory
  const Request& request() const { return *variants.front().request; }
  NameView name() const { return name_of(request()); }
  bool in_group_of(const Request& other) const;  // any of its variants is

  // `ranks` want `request`; `shared` is the same if somebody owns it already, else nullptr.
  void add(const Request& request, std::shared_ptr<const Request> shared, const RankSet& ranks);
};

class PendingTable {
 public:
  // nullptr when there is none.
  Pending* find(const NameView& name);
  Pending& insert(std::shared_ptr<const Request> request,
                  std::chrono::steady_clock::time_point since);
  void move(Pending& pending, Stage stage);
  void erase(Pending& pending);

  std::list<Pending>& at(Stage stage) { return lists_[static_cast<std::size_t>(stage)]; }
  const std::list<Pending>& at(Stage stage) const {
    return lists_[static_cast<std::size_t>(stage)];
  }

 private:
  using Names = std::unordered_map<NameView, Pending*, NameViewHash>;
  static constexpr std::size_t kSpares = 256;

  std::array<std::list<Pending>, kStageCount> lists_;
  Names by_name_;  // views into the first variant
  // Nodes of what was erased, for what comes next: each tensor of each step passes through here.
  std::list<Pending> spare_;
  std::vector<Names::node_type> spare_names_;
};

}  // namespace hvd
