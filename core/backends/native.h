// NativeBackend: the built-in backend for host memory. One host works through the shared-memory
// arena, several through rings of channels between them.
#pragma once

#include <unordered_map>

#include "backends/backend.h"
#include "backends/native_placement.h"
#include "base/config.h"
#include "collectives/store_policy.h"
#include "transport/arena.h"
#include "transport/links.h"
#include "transport/wait_control.h"

namespace hvd {

class NativeBackend final : public Backend {
 public:
  // `arena` may be null on a host with one rank. All references outlive the backend.
  NativeBackend(const Config& config, const Topology& topology, Arena* arena, Links& links,
                WaitControl& wait);

  std::string_view name() const override { return "native"; }
  std::optional<std::string> why_not(const Work& work) const override;
  // After a status that is not ok the lanes and channels may hold part of a response: the job must
  // end.
  Status execute(Work& work) override;

 private:
  const Placement& placement_of(const Work& work);
  Status dispatch(Work& work);

  const Topology& topology_;
  Arena* arena_;
  Links& links_;
  WaitControl& wait_;
  StorePolicy stores_;
  StorePolicy stream_stores_;
  std::unordered_map<ProcessSetId, Placement> placements_;
};

}  // namespace hvd
