//! B-WF2Q+: the choice of the next queue, by virtual times.
//!
//! Each class has a virtual time. It advances by the service of a queue, divided by the sum of the
//! weights. If the device served all queues at once, that would be one sector for each unit of
//! weight. A queue gets a *start* and a *finish* when it has requests: `finish = start + budget /
//! weight`. A queue is *eligible* from its start on. The eligible queue with the lowest finish is
//! served. After its service, its start is the virtual time that it has really used.
//!
//! A queue that runs empty with its finish ahead of the virtual time cannot gain by the pause: it
//! starts from that finish when it has requests again. Until then its weight stays in the sum.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use super::QueueId;
use crate::request::Class;
use crate::unit::Time;

/// Binary digits after the point of a virtual time. The kernel has 22, too.
const FRACTION_BITS: u32 = 22;

/// Time after which the idle class is served once in spite of the best-effort class
/// (`BFQ_CL_IDLE_TIMEOUT`: a fifth of a second).
const IDLE_CLASS_TIMEOUT: Time = Time::from_ms(200);

/// Virtual duration of a service: sectors for each unit of weight, with [`FRACTION_BITS`] binary
/// digits after the point.
fn duration(sectors: u64, weight: u64) -> u64 {
    (sectors << FRACTION_BITS) / weight
}

/// State of a queue in its tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum EntityState {
    /// Without requests or history; initially, and after an idle queue's finish.
    #[default]
    Forgotten,
    /// Without requests; its finish is ahead of the virtual time.
    Idle,
    /// With requests, waiting for service.
    Active,
    /// In service.
    InService,
}

/// A queue as the trees see it.
#[derive(Clone, Copy, Debug, Default)]
struct Entity {
    /// Presence of the queue in the sets of its tree.
    state: EntityState,
    /// Class and weight of the last activation.
    class: Class,
    weight: u64,
    /// Virtual times from which the queue may be served, and at which its budget would be used up.
    /// The `finish` of an idle queue is the end of the service that it really got.
    start: u64,
    finish: u64,
    /// Service that the queue may get, in sectors.
    budget: u64,
    /// Service since the last activation or requeue, in sectors, also by injection.
    service: u64,
}

/// The queues of one class.
#[derive(Debug, Default)]
struct ServiceTree {
    /// Virtual time of the class, with [`FRACTION_BITS`] binary digits after the point.
    virtual_time: u64,
    /// Sum of the weights of all queues that are not forgotten.
    weight_sum: u64,
    /// Active queues with a start ahead of the virtual time, by start.
    waiting: BTreeSet<(u64, QueueId)>,
    /// Other active queues, by finish.
    eligible: BTreeSet<(u64, QueueId)>,
    /// Idle queues, by finish.
    idle: BTreeSet<(u64, QueueId)>,
}

impl ServiceTree {
    fn has_active(&self) -> bool {
        !self.waiting.is_empty() || !self.eligible.is_empty()
    }

    /// Adds an active queue to one of the two sets.
    fn insert(&mut self, id: QueueId, entity: &Entity) {
        if entity.start <= self.virtual_time {
            self.eligible.insert((entity.finish, id));
        } else {
            self.waiting.insert((entity.start, id));
        }
    }
}

/// Parameters of a queue that becomes active.
#[derive(Clone, Copy, Debug)]
pub(super) struct Activation {
    pub class: Class,
    pub weight: u64,
    /// Service that the queue may get before the next choice, in sectors.
    pub budget: u64,
}

/// All queues, by class.
///
/// Invariant: an active entity is in one set of its class, an idle one in `idle`, and no other one
/// in any.
#[derive(Debug, Default)]
pub(super) struct ServiceTrees {
    /// The trees by class.
    trees: [ServiceTree; 3],
    /// Entities by queue.
    entities: Vec<Entity>,
    /// Last time at which the idle class had its turn.
    idle_class_at: Time,
}

impl ServiceTrees {
    /// Adds a queue without requests.
    pub(super) fn add(&mut self, QueueId(index): QueueId) {
        let index = index as usize;
        if index >= self.entities.len() {
            self.entities.resize(index + 1, Entity::default());
        }
        self.entities[index] = Entity::default();
    }

    /// Removes a queue without requests.
    pub(super) fn remove(&mut self, id: QueueId) {
        self.forget(id);
    }

    /// Activates a queue that had no requests. `is_continued`: it goes on with the rest of its
    /// budget, as if it had never run empty, and so is not delayed to the present virtual time.
    pub(super) fn activate(&mut self, id: QueueId, activation: Activation, is_continued: bool) {
        let former = self.entities[id.0 as usize];
        self.forget(id);
        let tree = &mut self.trees[activation.class as usize];
        tree.weight_sum += activation.weight;
        let (mut start, virtual_time) = (tree.virtual_time, tree.virtual_time);
        // A past in another class has no meaning for the times of this one.
        if former.class == activation.class {
            // Continued: from where its service ended. Soon back: not before its old finish.
            // Otherwise, it starts at the present virtual time.
            if is_continued && former.finish < virtual_time {
                start = former.finish;
            } else if former.state == EntityState::Idle {
                start = former.finish.max(virtual_time);
            }
        }
        let mut finish = start + duration(activation.budget, activation.weight);
        // A continued queue must not fall further and further behind the others.
        if finish < virtual_time {
            start += virtual_time - finish;
            finish = virtual_time;
        }
        self.enter(id, activation, start, finish);
    }

    /// Returns a queue with requests from service to its tree. It starts from the virtual time that
    /// it has really used, or after a change of class from the present one.
    pub(super) fn requeue(&mut self, id: QueueId, activation: Activation) {
        let Entity { class, weight, start, service, .. } = self.entities[id.0 as usize];
        let mut new_start = start + duration(service, weight);
        self.trees[class as usize].weight_sum -= weight;
        let tree = &mut self.trees[activation.class as usize];
        tree.weight_sum += activation.weight;
        if class != activation.class {
            new_start = tree.virtual_time;
        }
        let finish = new_start + duration(activation.budget, activation.weight);
        self.enter(id, activation, new_start, finish);
    }

    /// Adds an active entity without service.
    fn enter(&mut self, id: QueueId, activation: Activation, start: u64, finish: u64) {
        let Activation { class, weight, budget } = activation;
        let state = EntityState::Active;
        let entity = Entity { state, class, weight, start, finish, budget, service: 0 };
        self.trees[class as usize].insert(id, &entity);
        self.entities[id.0 as usize] = entity;
    }

    /// Makes a queue without requests idle, which was in service, or was taken out of its set by
    /// `withdraw`. Its service is kept for `budget_left`. It is forgotten at once if it has used no
    /// more than its share: its finish has passed.
    pub(super) fn deactivate(&mut self, id: QueueId) {
        let entity = &mut self.entities[id.0 as usize];
        entity.finish = entity.start + duration(entity.service, entity.weight);
        entity.state = EntityState::Idle;
        let finish = entity.finish;
        let tree = &mut self.trees[entity.class as usize];
        tree.idle.insert((finish, id));
        if finish <= tree.virtual_time {
            self.forget(id);
        }
    }

    /// Takes an active queue that has no request left out of its tree, without a turn in service.
    /// It becomes idle with the service that it got.
    pub(super) fn withdraw(&mut self, id: QueueId) {
        let Entity { class, start, finish, .. } = self.entities[id.0 as usize];
        let tree = &mut self.trees[class as usize];
        let is_active = tree.waiting.remove(&(start, id)) || tree.eligible.remove(&(finish, id));
        debug_assert!(is_active, "{id:?} is in a set of its class");
        self.deactivate(id);
    }

    /// Removes an idle queue and its weight. Its finish is kept for a continuation. A queue that is
    /// forgotten already stays so.
    fn forget(&mut self, id: QueueId) {
        let entity = &mut self.entities[id.0 as usize];
        if core::mem::take(&mut entity.state) == EntityState::Idle {
            let tree = &mut self.trees[entity.class as usize];
            tree.idle.remove(&(entity.finish, id));
            tree.weight_sum -= entity.weight;
        }
    }

    /// Chooses a queue and puts it in service. `None` if none has requests. Real-time queues are
    /// served before all others, and the idle class last, but once in [`IDLE_CLASS_TIMEOUT`].
    pub(super) fn select(&mut self, now: Time) -> Option<QueueId> {
        let mut classes = [Class::RealTime, Class::BestEffort, Class::Idle];
        if self.idle_class_at + IDLE_CLASS_TIMEOUT < now {
            // The idle class is asked first now, and once only, even without a request.
            self.idle_class_at = now;
            classes = [Class::Idle, Class::RealTime, Class::BestEffort];
        }
        let class = classes.into_iter().find(|&class| self.trees[class as usize].has_active())?;
        self.forget_passed(class);
        let tree = &mut self.trees[class as usize];
        // The virtual time jumps to the first start, because no active queue is eligible yet.
        if tree.eligible.is_empty() {
            let (start, _) = *tree.waiting.first().expect("it has active queues");
            tree.virtual_time = tree.virtual_time.max(start);
        }
        // Queues whose start has come are eligible now.
        while let Some(&(start, id)) = tree.waiting.first()
            && start <= tree.virtual_time
        {
            tree.waiting.pop_first();
            tree.eligible.insert((self.entities[id.0 as usize].finish, id));
        }
        let (_, id) = tree.eligible.pop_first().expect("one of them has started");
        self.entities[id.0 as usize].state = EntityState::InService;
        Some(id)
    }

    /// Forgets the idle queues of the class whose finish has passed.
    fn forget_passed(&mut self, class: Class) {
        let index = class as usize;
        while let Some(&(finish, id)) = self.trees[index].idle.first()
            && finish <= self.trees[index].virtual_time
        {
            self.forget(id);
        }
    }

    /// Records service of a queue: the one in service, or one whose request was injected. The
    /// virtual time of its class advances. Its own weight is in the sum, which is thus not 0.
    pub(super) fn serve(&mut self, id: QueueId, sectors: u64) {
        let entity = &mut self.entities[id.0 as usize];
        entity.service += sectors;
        let tree = &mut self.trees[entity.class as usize];
        tree.virtual_time += duration(sectors, tree.weight_sum);
    }

    /// Raises the budget of a queue that is in service, or was until now, to `sectors`. A larger
    /// budget stays.
    pub(super) fn raise_budget_to(&mut self, id: QueueId, sectors: u64) {
        let budget = &mut self.entities[id.0 as usize].budget;
        *budget = (*budget).max(sectors);
    }

    /// Budget of a queue, in sectors.
    pub(super) fn budget(&self, id: QueueId) -> u64 {
        self.entities[id.0 as usize].budget
    }

    /// Service of a queue since its last activation or requeue, in sectors.
    pub(super) fn service(&self, id: QueueId) -> u64 {
        self.entities[id.0 as usize].service
    }

    /// Rest of the budget of a queue, in sectors.
    pub(super) fn budget_left(&self, id: QueueId) -> u64 {
        let entity = &self.entities[id.0 as usize];
        entity.budget.saturating_sub(entity.service)
    }

    /// Class and weight with which the queue was last activated.
    pub(super) fn rank(&self, id: QueueId) -> (Class, u64) {
        let entity = &self.entities[id.0 as usize];
        (entity.class, entity.weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn activation(class: Class, weight: u64, budget: u64) -> Activation {
        Activation { class, weight, budget }
    }

    /// Two queues of weight 10 with a budget of 100 each, and one of weight 20 with 100, always
    /// with requests. In virtual time, a sector of the first two takes 1/10, of the third 1/20.
    ///
    /// The starts are 0; the finishes 10, 10 and 5: queue 2 first. The virtual time advances by
    /// 100/40 = 2.5; queue 2 starts again at 5, which is ahead: it must wait. Queue 0 (10) and 1
    /// (10): 0. Time 5: queue 2 is eligible, with finish 10; of two equal finishes the lower
    /// number is first: 1. Time 7.5: 2; 0 waits from 10. Time 10: all have started at 10 (0, 1, 2),
    /// with finishes 20, 20, 15: as at the beginning.
    #[test]
    fn golden_choice_by_virtual_times() {
        let mut trees = ServiceTrees::default();
        let weights = [10, 10, 20];
        let active = |queue: u32| activation(Class::BestEffort, weights[queue as usize], 100);
        for queue in 0..3 {
            trees.add(QueueId(queue));
            trees.activate(QueueId(queue), active(queue), false);
        }
        for expected in [2, 0, 1, 2, 2, 0, 1, 2] {
            let id = trees.select(Time::ZERO).unwrap();
            assert_eq!(id, QueueId(expected));
            trees.serve(id, 100);
            trees.requeue(id, active(id.0));
        }
    }

    /// Queue 0 has used 100 of 1,000 sectors when it runs empty, and finishes at 10. At 5, half of
    /// the service of two queues of weight 10, it is idle. It starts again from its finish, 10, and
    /// not from 5. Once the time is past 10, it has no history. If it continues its service, it
    /// starts from 10 even then, whether it has been forgotten or not.
    #[test]
    fn queue_that_ran_empty_starts_at_its_finish() {
        let start_after = |sectors_of_other, is_forgotten, is_continued| {
            let mut trees = ServiceTrees::default();
            for queue in 0..2 {
                trees.add(QueueId(queue));
                trees.activate(QueueId(queue), activation(Class::BestEffort, 10, 1_000), false);
            }
            assert_eq!(trees.select(Time::ZERO), Some(QueueId(0)));
            trees.serve(QueueId(0), 100);
            trees.deactivate(QueueId(0));
            assert_eq!(trees.select(Time::ZERO), Some(QueueId(1)));
            trees.serve(QueueId(1), sectors_of_other);
            if is_forgotten {
                trees.forget_passed(Class::BestEffort);
            }
            trees.activate(QueueId(0), activation(Class::BestEffort, 10, 1_000), is_continued);
            trees.entities[0].start >> FRACTION_BITS
        };
        assert_eq!([start_after(0, false, false), start_after(0, false, true)], [10, 10]);
        // 5 by the first queue, 10 by the second.
        assert_eq!([start_after(200, false, false), start_after(200, true, false)], [15, 15]);
        assert_eq!([start_after(200, false, true), start_after(200, true, true)], [10, 10]);
    }

    /// Class before finish; the idle class once in 200 ms.
    #[test]
    fn real_time_comes_first_and_the_idle_class_is_not_starved() {
        let mut trees = ServiceTrees::default();
        for (queue, class) in [Class::Idle, Class::BestEffort, Class::RealTime].iter().enumerate() {
            trees.add(QueueId(queue as u32));
            trees.activate(QueueId(queue as u32), activation(*class, 10, 100), false);
        }
        for (ms, expected) in [(0, 2), (200, 2), (201, 0), (202, 2), (401, 2), (402, 0)] {
            let id = trees.select(Time::from_ms(ms)).unwrap();
            assert_eq!(id, QueueId(expected), "at {ms} ms");
            trees.serve(id, 10);
            trees.requeue(id, activation(trees.rank(id).0, 10, 100));
        }
    }
}
