#pragma once
#include <mpi.h>

#include <memory>
#include <span>

#include "millrace/comm/transfer.h"

namespace millrace {

// A persistent receive: the same memory, sender and tag every time.
class MpiReceive final : public Transfer::Backend {
 public:
  MpiReceive(MPI_Comm comm, int from, int tag, std::span<std::byte> into, std::shared_ptr<const void> owner);
  ~MpiReceive() override;
  void start(std::size_t) override;
  bool done() override;
  void cancel() override;
  std::size_t bytes() const override { return bytes_; }

 private:
  MPI_Request request_ = MPI_REQUEST_NULL;
  const std::shared_ptr<const void> owner_;  // of the memory
  bool pending_ = false;
  std::size_t bytes_ = 0;
};

// A send of varying length. Not persistent: a persistent send has a fixed length, and for messages of this size setting
// up the request costs nothing that can be measured.
class MpiSend final : public Transfer::Backend {
 public:
  MpiSend(MPI_Comm comm, int to, int tag, std::span<const std::byte> from)
      : comm_(comm), to_(to), tag_(tag), from_(from) {}
  ~MpiSend() override;
  void start(std::size_t bytes) override;
  bool done() override;
  void cancel() override {}
  std::size_t bytes() const override { return 0; }

 private:
  MPI_Comm comm_;
  int to_, tag_;
  std::span<const std::byte> from_;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

}  // namespace millrace
