// Instruments: what one engine records about itself.
#pragma once

#include "trace/flight_recorder.h"
#include "trace/metrics.h"
#include "trace/timeline.h"

namespace hvd {

struct Instruments {
  explicit Instruments(std::size_t flight_recorder_size) : recorder(flight_recorder_size) {}

  Metrics metrics;
  FlightRecorder recorder;
  Timeline timeline;
};

}  // namespace hvd
