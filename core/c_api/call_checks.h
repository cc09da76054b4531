// Checks of calls that come through C; those of calls from Python are in horovod/common/collectives.py,
// with the same texts. Pure.
#pragma once

#include <vector>

#include "base/status.h"
#include "c_api/horovod.h"
#include "engine/engine.h"

namespace hvd {

// HVD_OK, or why the caller must not make this call, as `code` and `text`.
struct CallFault {
  int code = HVD_OK;
  std::string text;
};

// `members`: of the call's process set, ascending; nullptr when there is no such set.
CallFault check_call(const hvd_call& call, const std::vector<Rank>* members, Rank own_rank);

}  // namespace hvd
