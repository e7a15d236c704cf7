//! The pruned search for the cheapest command, compared with a search that computes all costs.

use readpath_core::request::RequestId;
use readpath_core::splitmix;

use super::super::drive::{AccessTime, MechanicsSpec, QueuePolicy};
use super::super::mechanics::{HeadPosition, Mechanics};
use super::super::seek::{DataSheetSeeks, HplCurve, SeekCurve};
use super::*;

const CYLINDERS: u32 = 50_600;
const SECTORS: u32 = 8;

/// Curves that rise, that fall in part, and that are level.
fn curves() -> Vec<SeekCurve> {
    let rising = DataSheetSeeks { single_ms: 0.35, average_ms: 4.7, full_ms: 9.7 };
    // The factor of its line is below 0: it falls towards the last cylinders.
    let bent = DataSheetSeeks { single_ms: 1.0, average_ms: 8.0, full_ms: 10.0 };
    let hpl = HplCurve {
        division_cylinders: 383.0,
        root_base_ms: 3.24,
        root_factor_ms: 0.4,
        line_base_ms: 1.0,
        line_slope_ms: 0.0002,
        single_ms: None,
    };
    vec![
        SeekCurve::Lee(rising),
        SeekCurve::Lee(bent),
        SeekCurve::Linear(rising),
        SeekCurve::SquareRoot { single_ms: 0.6, full_ms: 10.0 },
        SeekCurve::SquareRoot { single_ms: 10.0, full_ms: 0.6 },
        SeekCurve::Hpl(hpl),
        SeekCurve::Table(vec![(1, 5.0), (100, 0.5), (20_000, 6.0), (50_000, 2.0)]),
        SeekCurve::Constant { ms: 3.0 },
    ]
}

/// Random test data derived from a seed.
struct TestRng(u64);

impl TestRng {
    /// Returns a number below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        splitmix::next(&mut self.0) % bound
    }

    /// Returns a random element of `all`.
    fn one_of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize].clone()
    }

    /// Returns mechanics with random curves, head switch time and settle times.
    fn mechanics(&mut self) -> Mechanics {
        let curves = curves();
        let write_seek = (self.below(2) == 0).then(|| self.one_of(&curves));
        let tracked = AccessTime::Tracked;
        let spec = MechanicsSpec {
            rpm: 10_000.0,
            seek: self.one_of(&curves),
            head_switch_ns: self.one_of(&[0, 400_000, 9_000_000]),
            write_seek,
            write_settle_ns: self.one_of(&[-500_000, 0, 300_000]),
            settles_on_return: self.below(2) == 0,
            access: self.one_of(&[
                tracked,
                tracked,
                AccessTime::HalfTurn,
                AccessTime::Constant { ns: 700 },
            ]),
            zero_latency_read: false,
            zero_latency_write: false,
        };
        Mechanics::new(&spec, CYLINDERS, self.below(u64::MAX))
    }

    /// Returns a random track.
    fn arm_track(&mut self) -> HeadPosition {
        HeadPosition { cylinder: self.below(CYLINDERS.into()) as u32, head: self.below(2) as u32 }
    }

    /// Draws a command near the arm or anywhere, ready or not. Some continue `previous_request`.
    fn command(
        &mut self,
        id: u32,
        arm_track: HeadPosition,
        now_ns: u64,
        previous_request: Option<DeviceRequest>,
    ) -> DiskCommand {
        let distance_max = self.one_of(&[1, 50, 5_000, CYLINDERS]);
        let offset = self.below(u64::from(2 * distance_max) + 1) as i64 - i64::from(distance_max);
        let cylinder = (i64::from(arm_track.cylinder) + offset).clamp(0, i64::from(CYLINDERS) - 1);
        let random_bits = splitmix::next(&mut self.0);
        let start = match previous_request {
            Some(previous) if self.below(8) == 0 => previous.end(),
            _ => self.below(1 << 30) * u64::from(SECTORS),
        };
        DiskCommand {
            request: DeviceRequest {
                id: RequestId(id),
                op: self.one_of(&[Op::Read, Op::Read, Op::Write]),
                start,
                sectors: SECTORS,
            },
            ready_ns: now_ns.saturating_add_signed(self.one_of(&[-5_000, -1, 0, 1, 1_000_000])),
            in_window_since_ns: now_ns,
            position: SectorPosition {
                cylinder: cylinder as u32,
                head: self.below(2) as u32,
                // Two thirds are multiples of 1/16 revolution, so that commands cost the same.
                angle: self.below(16) << 60 | self.one_of(&[0, 0, u64::MAX >> 4]) & random_bits,
                ..SectorPosition::default()
            },
            may_be_cached: false,
            waits_for_room: false,
            bus: BusState::Left { from_ns: 0 },
            bus_release_ns: 0,
            early_disconnect: None,
        }
    }
}

/// Returns the first of the cheapest commands that can be served. Computes the cost of each.
fn cheapest_of_all(
    queue: &CommandQueue,
    now_ns: u64,
    cost_ns: impl Fn(&DiskCommand) -> u64,
) -> Option<RequestId> {
    let window = queue.spec.window as usize;
    let waiting: Vec<&DiskCommand> = queue.commands.iter().take(window).collect();
    let continues_previous = |index: usize| {
        let (previous, this) = (waiting[index - 1], waiting[index]);
        previous.request.op == this.request.op
            && previous.request.start + u64::from(SECTORS) == this.request.start
            && previous.ready_ns <= now_ns
    };
    let is_oldest_alone = queue.commands.len() == 1 || window == 1;
    if is_oldest_alone && waiting[0].ready_ns <= now_ns {
        return Some(waiting[0].request.id);
    }
    (0..waiting.len())
        .filter(|index| waiting[*index].ready_ns <= now_ns)
        .filter(|index| *index == 0 || !continues_previous(*index))
        .min_by_key(|index| cost_ns(waiting[*index]))
        .map(|index| waiting[index].request.id)
}

/// The pruned search serves random queues on random mechanics to their end. Each command taken is
/// the first of the cheapest ones. The time at which the window is ready is the ready time of its
/// commands.
#[test]
fn pruned_search_chooses_the_command_of_the_full_search() {
    for seed in 0..3_000 {
        let mut rng = TestRng(seed);
        let mechanics = rng.mechanics();
        let (mut now_ns, mut arm_track) = (1_000_000 + rng.below(1 << 40), rng.arm_track());
        let window = 1 + rng.below(40) as u32;
        let mut queue = CommandQueue::new(QueueSpec {
            order: QueuePolicy::Positioning,
            depth: 40,
            window,
            age_limit_ns: u64::MAX,
            combines_writes: false,
            request_sectors_max: 2560,
        });
        let mut previous_request = None;
        for id in 0..1 + rng.below(40) as u32 {
            let command = rng.command(id, arm_track, now_ns, previous_request);
            previous_request = Some(command.request);
            queue.push(command);
        }
        while !queue.is_empty() {
            let in_window = queue.commands.iter().take(window as usize);
            assert_eq!(queue.earliest_ready_ns(), in_window.map(|command| command.ready_ns).min());
            let cost_ns = |command: &DiskCommand| {
                mechanics.positioning_ns(now_ns, arm_track, &command.position, command.request.op)
            };
            let expected = cheapest_of_all(&queue, now_ns, cost_ns);
            let pruned_cost = |command: &DiskCommand, limit: u64| {
                let (position, op) = (&command.position, command.request.op);
                let start = (now_ns, mechanics.angle_at(now_ns));
                mechanics.positioning_ns_below(start, arm_track, (position, op), limit)
            };
            let write_back_cost = || u64::MAX;
            let served = match queue.take_next(now_ns, pruned_cost, write_back_cost) {
                Some(ArmTask::Serve(command)) => Some(command),
                Some(ArmTask::MakeRoom) => panic!("no write waits for room"),
                None => None,
            };
            assert_eq!(served.map(|command| command.request.id), expected, "seed {seed}");
            now_ns += 1 + rng.below(3_000_000);
            if let Some(DiskCommand { position, .. }) = served {
                arm_track = HeadPosition { cylinder: position.cylinder, head: position.head };
                if rng.below(16) == 0 {
                    let rest_id = 99;
                    let rest = rng.command(rest_id, arm_track, now_ns, None);
                    queue.return_rest(rest);
                }
            }
        }
        assert_eq!(queue.earliest_ready_ns(), None);
    }
}

/// At 10,000 rotations a minute, a rotation takes 6 ms. At angle 0, a sector half a rotation away
/// arrives after 3 ms or later, even without the seek of 1 ms. A sector that passed less than
/// 500 ns ago counts as just arriving, so its full cost is computed.
#[test]
fn sector_later_than_the_best_candidate_is_pruned() {
    let spec = MechanicsSpec {
        rpm: 10_000.0,
        seek: SeekCurve::Constant { ms: 1.0 },
        head_switch_ns: 0,
        write_seek: None,
        write_settle_ns: 0,
        settles_on_return: false,
        access: AccessTime::Tracked,
        zero_latency_read: false,
        zero_latency_write: false,
    };
    let mechanics = Mechanics::new(&spec, CYLINDERS, 0);
    let cost_ns = |cylinder: u32, angle: u64, limit: u64| {
        let position = SectorPosition { cylinder, angle, ..SectorPosition::default() };
        let start = (0, mechanics.angle_at(0));
        mechanics.positioning_ns_below(start, HeadPosition::default(), (&position, Op::Read), limit)
    };
    let is_near = |cost: Option<u64>, expected_ns: u64| {
        cost.is_some_and(|cost_ns| cost_ns.abs_diff(expected_ns) < 2)
    };
    let (quarter, half) = (1 << 62, 1 << 63);
    assert!(is_near(cost_ns(0, half, u64::MAX), 3_000_000));
    assert!(is_near(cost_ns(9, half, 3_000_002), 3_000_000));
    assert_eq!(cost_ns(9, half, 2_999_998), None);
    assert!(is_near(cost_ns(9, quarter, 1_500_002), 1_500_000));
    // A sector that passed 300 ns ago: 300 / 6,000,000 = 1 / 20,000 revolution. On another track
    // the head settles after 1 ms and misses it, and the sector returns after 6 ms − 300 ns.
    let just_passed = u64::MAX - (u64::MAX / 20_000);
    assert_eq!(cost_ns(0, just_passed, 1), Some(0));
    assert!(is_near(cost_ns(9, just_passed, u64::MAX), 5_999_700));
}
