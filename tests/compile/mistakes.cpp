// The mistakes a newcomer makes most. This file must NOT compile: the test checks that each marked line gives that one
// readable line among the compiler's errors.
#include "levin/levin.h"

struct NetImpl : torch::nn::Module {
  NetImpl() : layer(register_module("layer", torch::nn::Linear(4, 2))) {}
  torch::Tensor forward(const torch::Tensor& x) { return layer(x); }
  torch::nn::Linear layer;
};
TORCH_MODULE(Net);

struct NoForwardImpl : torch::nn::Module {};

class Opaque {
 public:
  explicit Opaque(int size) : secret_(size) {}

 private:
  int secret_;
};

struct OpaqueNetImpl : torch::nn::Module {
  Opaque forward(const torch::Tensor&) { return Opaque(1); }
};
TORCH_MODULE(OpaqueNet);

void module_on_the_stack(levin::Fabric& fabric) {
  NetImpl net;
  (void)fabric.setup(net);  // expect: setup takes a module holder or a std::shared_ptr, not the module itself
}

void set_up_twice(levin::Fabric& fabric) {
  auto net = fabric.setup(Net());
  (void)fabric.setup(net);  // expect: this module was set up already
}

void not_a_module(levin::Fabric& fabric) {
  (void)fabric.setup(3);  // expect: the first argument of setup must be a module
}

void not_an_optimizer(levin::Fabric& fabric) {
  (void)fabric.setup(Net(), 1e-3);  // expect: after the module, setup takes optimizers
}

void wrong_arguments(levin::Fabric& fabric) {
  auto net = fabric.setup(Net());
  (void)net(torch::ones({1, 4}), 3, "text");  // expect: this module's forward cannot be called with these arguments
}

void loss_without_graph(levin::Fabric& fabric) {
  auto net = fabric.setup(Net());
  fabric.backward(net(torch::ones({1, 4})).sum().item<float>());  // expect: backward takes the loss as a tensor
}

void not_set_up(levin::Fabric& fabric) {
  Net net;
  (void)fabric.no_backward_sync(net);  // expect: no_backward_sync takes the module that setup returned
}

void module_in_place_of_function(levin::Fabric& fabric) {
  (void)fabric.init_module(Net());  // expect: init_module takes a function that makes the module
}

void number_that_dies(levin::Fabric& fabric) {
  auto net = fabric.setup(Net());
  fabric.save("folder", {{"model", net}, {"epoch", 3}});  // expect: a State binds variables
}

void opaque_output(levin::Fabric& fabric) {
  auto net = fabric.setup(OpaqueNet());
  (void)net(torch::ones({1}));  // expect: cannot see the tensors in this type
}

void opaque_batch(levin::Fabric& fabric) {
  std::vector<Opaque> data;
  auto loader = fabric.setup_dataloaders(data);  // expect: cannot see the tensors in this loader's batches
  (void)loader;
}

struct Numbers : torch::data::datasets::Dataset<Numbers> {
  torch::data::Example<> get(size_t) override { return {torch::ones({4}), torch::ones({1})}; }
  std::optional<size_t> size() const override { return 4; }
};

// A program of LibTorch, converted by somebody who has read nothing.
void torch_loader_in_a_state(levin::Fabric& fabric) {
  auto loader = torch::data::make_data_loader(Numbers(), 2);
  auto mine = fabric.setup_dataloaders(loader);
  fabric.save("folder", {{"loader", mine}});  // expect: a torch data loader cannot resume where it stopped
}

struct Stream : torch::data::datasets::StatefulDataset<Stream, std::vector<torch::data::Example<>>> {
  std::optional<std::vector<torch::data::Example<>>> get_batch(size_t) override { return std::nullopt; }
  void reset() override {}
  std::optional<size_t> size() const override { return 4; }
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}
};

void stateful_dataset() {
  auto loader = levin::make_loader(Stream(), {.batch_size = 2});  // expect: keep torch::data::make_data_loader
  (void)loader;
}

void arguments_of_a_method(levin::Fabric& fabric) {
  auto net = fabric.setup(Net());
  (void)net.call(&NetImpl::forward, 3);  // expect: call takes a method of the module
}

void clips_a_const_vector(const std::vector<torch::Tensor>& parameters) {
  (void)torch::nn::utils::clip_grad_norm_(parameters, 1.0);  // names: clip_grad_norm_
}

void not_a_forward() {
  LEVIN_MODULE(NoForward);  // expect: needs a member function forward
  NoForward module;
}

// Without the name of the type a compiler names no field (docs/trainer.md): with it, it does.
void option_that_is_not_there() {
  (void)levin::TrainerOptions{.accelerator = "cpu", .max_epoch = 3};  // names: max_epoch
}

void option_of_another_type() {
  (void)levin::optim::AdamWOptions{.lr = "fast"};  // names: char
}
