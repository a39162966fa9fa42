// The door for clients: who may come in, and the handshake. Behind it a client is a Session.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>

#include "ddip/coordinator/session.h"
#include "ddip/net/loop.h"
#include "ddip/wire/message.h"

namespace ddip::coordinator {

struct DoorLimits {
  std::chrono::nanoseconds handshake = std::chrono::seconds(5);
  size_t pending = 32;  // connected, not yet authenticated; more wait in the listener's queue
  std::chrono::nanoseconds moment = std::chrono::milliseconds(50);  // nobody gives way to others sooner
};

class Door {
 public:
  struct Events {
    std::function<void(Session&, wire::Message hello)> on_enter;
    std::function<void(Session&, wire::Message)> on_message;
    std::function<void(Session&, const std::string& reason)> on_leave;  // the session is destroyed after it
    std::function<void(Session&)> on_drained;
  };

  Door(net::Loop& loop, Fd listener, std::string key, Events events, DoorLimits limits = {});
  ~Door();

  std::list<Session>& sessions() { return sessions_; }
  Session* find(uint64_t number);

 private:
  struct Pending;
  void open();
  void close_for(std::chrono::nanoseconds time);
  void rest();
  void accept_all();
  void on_hello(uint64_t number, wire::Message message);
  void drop_pending(uint64_t number, const std::string& reason);
  void leave(uint64_t number, const std::string& reason);

  net::Loop& loop_;
  Fd listener_;
  std::string key_;
  DoorLimits limits_;
  Events events_;
  uint64_t last_number_ = 0;
  std::map<uint64_t, std::unique_ptr<Pending>> pending_;
  std::list<Session> sessions_;
  net::Loop::Handle accepting_;
  net::Loop::Handle closed_for_a_moment_;
  bool resting_ = false;  // for want of descriptors
  uint64_t refused_ = 0;
};

}  // namespace ddip::coordinator
