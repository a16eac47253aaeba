// epoll_wait of the C library, with one difference: a thread that sees the same event twice in a row yields.
//
// Gloo's thread leaves an event alone while another thread has the connection's lock, and asks again at once. Where ranks
// have fewer cores than threads, the other thread then waits for the core on which Gloo's spins. LibTorch calls epoll_wait
// through its table of symbols, so the first library that has it wins: Levin, wherever a program links Levin before
// LibTorch.
#include <sched.h>
#include <sys/epoll.h>

extern "C" int epoll_wait(int epoll, epoll_event* events, int size, int timeout) {
  thread_local const void* before = nullptr;
  const int count = ::epoll_pwait(epoll, events, size, timeout, nullptr);
  const void* now = count > 0 ? events[0].data.ptr : nullptr;
  if (now && now == before) ::sched_yield();
  before = now;
  return count;
}
