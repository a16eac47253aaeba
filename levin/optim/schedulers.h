#pragma once

// All learning rate schedulers.
#include "levin/optim/schedulers/composed_schedulers.h"
#include "levin/optim/schedulers/cosine_schedulers.h"
#include "levin/optim/schedulers/decay_schedulers.h"
#include "levin/optim/schedulers/one_cycle.h"
#include "levin/optim/schedulers/plateau.h"
#include "levin/optim/schedulers/scheduler.h"
#include "levin/optim/schedulers/swa_lr.h"
