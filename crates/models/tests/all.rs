//! Tests of the device models through their public API, linked as one program.

mod device_contract;
mod disk_mixed;
mod disk_writes;
mod hard_disk;
mod hard_disk_traces;
mod measure;
mod member_contract;
mod physics;
mod remote;
mod shingled;
mod solid_state;
mod striping;
mod volume;
mod write_back;
