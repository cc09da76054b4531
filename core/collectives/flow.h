// Flow: bytes under way between this rank and others over channels; `drive` moves several flows at
// once until all are done, without a thread of its own.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <span>
#include <vector>

#include "base/status.h"
#include "collectives/segments.h"
#include "transport/channel.h"
#include "transport/wait_control.h"

namespace hvd {

// What a flow waits for when it can't move.
struct Watch {
  Channel* channel;
  bool to_send;
  bool to_receive;
};

class Flow {
 public:
  virtual ~Flow() = default;
  // Moves what can be moved now; true if that was anything.
  virtual bool advance() = 0;
  virtual bool done() const = 0;
  virtual void watch(std::vector<Watch>& watches) const = 0;
};

Status drive(std::span<Flow* const> flows, WaitControl& wait);

// Sends the inputs or receives into the outputs of a view.
class SendFlow : public Flow {
 public:
  SendFlow(Channel& channel, const View& from) : channel_(channel), from_(from) {}
  bool advance() override;
  bool done() const override { return sent_ == from_.bytes; }
  void watch(std::vector<Watch>& watches) const override;

 private:
  Channel& channel_;
  View from_;
  std::size_t sent_ = 0;
};

class ReceiveFlow : public Flow {
 public:
  ReceiveFlow(Channel& channel, const View& to) : channel_(channel), to_(to) {}
  bool advance() override;
  bool done() const override { return received_ == to_.bytes; }
  void watch(std::vector<Watch>& watches) const override;

 private:
  Channel& channel_;
  View to_;
  std::size_t received_ = 0;
};

enum class Side { kInputs, kOutputs };

// Sends from the start of `view` (its inputs or outputs); how many bytes were accepted.
std::size_t send_some(Channel& channel, const View& view, Side side);
// Receives into the first contiguous part of the outputs of `view`.
std::size_t receive_some(Channel& channel, const View& view);

}  // namespace hvd
