//! Stacks on real veth pairs, against the kernel's own sockets at the other
//! end. Needs root; each test has two network namespaces of its own, which
//! vanish with it however it ends.
//!
//! A test runs its body in this program again, started inside the namespace of
//! the stack, so that /sys shows that namespace. Threads that visit the other namespace
//! create the peer's sockets.

mod acp;
mod adopt;
mod architectures;
mod burst;
mod busy_reader;
mod capture;
mod circuits;
mod classes;
mod device;
mod event_loop;
mod exchange;
mod fast_open;
mod forked;
mod forward;
mod jumbo;
mod kernel;
mod kernel_frames;
mod life;
mod long_segments;
mod next_hops;
mod options;
mod path_mtu;
mod policies;
mod poll;
mod priorities;
mod raw_system;
mod readiness;
mod sending;
mod sources;
mod spin;
mod steering;
mod support;
mod tap;
mod tap_engine;
mod tcp;
mod tcp_attacks;
mod tcp_bulk;
mod tcp_capture;
mod tcp_shares;
mod tcp_window;
mod turns;
mod waiting;

macro_rules! system_tests {
    ($($module:ident::$name:ident on $queues:literal,)*) => {
        $(
            #[test]
            fn $name() {
                support::run_in_namespaces(stringify!($name), $queues);
            }
        )*

        /// The bodies that run inside.
        mod inside {
            $(
                #[test]
                #[ignore = "run by the test of the same name, in its namespace"]
                fn $name() {
                    crate::$module::$name();
                }
            )*
        }
    };
}

// Each on veths of so many queues.
system_tests! {
    acp::kernel_ends_exchange_frames_with_a_stack on 1,
    acp::who_must_confirm_refuses_kernel_ends on 1,
    adopt::a_listener_of_the_kernels_goes_on_by_the_stack on 1,
    adopt::connections_that_the_kernel_had_lose_no_segment on 1,
    adopt::what_cannot_be_adopted_is_as_before on 1,
    adopt::a_datagram_socket_of_the_kernels_goes_on_by_the_stack on 1,
    adopt::a_peer_that_the_kernel_knows_is_the_adopted_sockets on 1,
    adopt::a_connection_is_from_where_the_kernels_socket_is_bound on 1,
    adopt::the_kernels_numbers_name_adopted_sockets on 2,
    circuits::two_stacks_exchange_payloads_and_pings on 1,
    circuits::payloads_of_rfc_2225_go_in_one_frame_each on 1,
    circuits::payloads_of_64_kib_go_in_one_frame_each on 1,
    steering::a_flooded_port_has_a_queue_of_its_own_while_the_flood_lasts on 2,
    steering::a_veth_that_does_not_steer_says_so_once on 2,
    steering::a_stack_that_must_not_steer_leaves_the_card_alone on 2,
    steering::a_killed_owner_leaves_no_rule on 2,
    circuits::a_stack_of_circuits_alone_sleeps_after_a_burst on 1,
    circuits::two_stacks_call_each_other on 1,
    circuits::the_next_hop_is_found_as_any_neighbour on 1,
    event_loop::an_event_loop_serves_kernel_clients on 1,
    exchange::echo_to_kernel_peers_in_every_size on 1,
    exchange::connected_sockets_hear_that_nobody_listens on 1,
    exchange::two_queues_both_serve on 2,
    exchange::batches_reach_a_kernel_peer_in_order on 1,
    exchange::marks_and_hops_reach_the_application on 1,
    next_hops::answers_to_many_hosts_leave_by_the_stack on 1,
    next_hops::a_neighbour_with_another_link_address_is_followed on 1,
    path_mtu::answers_longer_than_the_path_allows_arrive_whole on 1,
    path_mtu::who_only_sends_keeps_to_the_path_mtu_too on 1,
    path_mtu::a_socket_that_wants_no_fragments_gets_emsgsize on 1,
    path_mtu::a_firewall_that_hides_errors_from_the_kernel_costs_one_more on 1,
    path_mtu::the_mtu_of_a_route_is_kept_to on 1,
    path_mtu::forged_size_errors_change_nothing on 1,
    kernel::a_port_has_one_owner_on_the_host on 1,
    kernel::localhost_reaches_the_same_socket on 1,
    kernel::localhost_is_served_while_the_network_floods on 1,
    kernel::ping_and_tcp_go_on_beside_a_stack on 1,
    kernel::a_flood_at_the_kernel_is_limited_and_an_owned_port_served on 1,
    kernel::tagged_and_unknown_frames_are_counted on 1,
    kernel_frames::a_blast_at_a_closed_port_leaves_syns_and_answers on 1,
    kernel_frames::neighbours_are_found_beside_floods_of_their_questions on 1,
    kernel_frames::a_router_forwards_as_without_a_stack on 1,
    kernel_frames::what_is_not_for_this_host_is_limited_while_it_has_no_use_for_it on 1,
    life::a_killed_owner_leaves_nothing_behind on 1,
    life::stacks_can_follow_each_other_at_once on 2,
    life::an_interface_that_goes_down_comes_back on 1,
    life::interrupts_are_deferred_while_frames_come on 1,
    life::interrupts_stay_deferred_beside_a_flood_at_the_kernel on 1,
    life::its_own_interface_goes_down_and_up_and_is_polled_again on 2,
    life::addresses_added_later_are_its_own on 1,
    life::its_link_address_is_followed on 1,
    life::its_mtu_is_followed on 1,
    life::a_deleted_interface_leaves_sockets_to_the_kernel on 1,
    life::strangers_do_not_reach_the_helpers on 1,
    life::probes_that_the_kernel_drops_are_warned_of on 1,
    poll::a_poll_before_a_sleep_takes_what_waits_with_one_id_known on 1,
    life::a_live_stack_answers_stat_and_trace on 1,
    life::a_stack_whose_socket_was_removed_ends on 1,
    forked::a_child_that_lives_on_keeps_nothing_of_the_interface on 2,
    forward::connections_of_kernels_pass_in_place on 2,
    forward::segments_in_several_frames_pass_in_place on 2,
    forward::segments_in_many_frames_pass_in_place on 2,

    readiness::what_the_kernel_has_is_reported_until_it_is_taken on 1,
    busy_reader::a_busy_reader_loses_no_segment_that_it_had_room_for on 1,
    spin::a_closed_loop_is_as_fast_as_where_polling_is_asked_for on 1,
    burst::clients_that_connect_at_once_send_no_syn_twice on 1,
    turns::what_a_slow_turn_writes_leaves_before_its_end on 1,
    priorities::the_sleeper_of_the_highest_priority_leads on 1,
    priorities::the_helper_follows_the_thread_that_started_it on 1,
    priorities::a_helper_that_may_not_follow_says_so_once on 1,
    waiting::an_idle_service_uses_no_cpu on 1,
    waiting::threads_on_different_sockets_hand_the_lead_on on 1,
    waiting::a_sleeper_is_served_beside_a_thread_that_polled on 1,
    waiting::an_acknowledgment_alone_wakes_nobody on 1,
    waiting::a_thread_that_only_accepts_is_not_woken_for_requests on 1,
    waiting::a_selector_that_sleeps_polls_no_device on 1,
    architectures::all_architectures_exchange_datagrams on 1,
    architectures::all_architectures_on_two_queues on 2,
    architectures::closures_that_panic_cost_no_architecture_a_frame on 2,
    device::checksums_are_proven_by_a_frame_that_no_peer_sees on 1,
    device::an_interface_that_is_down_gets_no_proof_and_loses_no_frame on 1,
    device::answers_leave_where_fewer_queues_transmit_than_receive on 2,
    device::full_sized_datagrams_pass_at_every_mtu on 1,
    device::full_sized_segments_pass_at_every_mtu on 1,
    device::a_start_that_fails_half_way_leaves_nothing_behind on 2,
    classes::more_classes_than_queues_are_refused on 2,
    classes::a_veth_says_that_it_cannot_steer on 2,
    classes::the_first_class_is_served_beside_a_flood_of_the_second on 2,
    policies::every_policy_serves_in_both_places on 1,
    policies::a_fixed_interval_is_what_the_device_gets on 1,
    policies::receive_control_changes_while_it_serves on 1,
    policies::comparators_have_no_receive_control on 1,
    policies::what_is_out_of_range_is_refused_before_anything_is_touched on 1,
    tcp::kernel_clients_are_served_by_a_selector on 1,
    tcp::streams_reach_services_of_the_kernel on 1,
    options::streams_begin_with_what_the_namespace_says on 1,
    options::the_kernels_streams_have_the_same_options on 1,
    tcp::ten_megabytes_each_way_arrive_intact on 2,
    tcp::localhost_and_the_network_meet_in_one_listener on 1,
    tcp::a_tcp_port_has_one_owner_on_the_host on 1,
    tcp::resets_are_heard_both_ways on 1,
    tcp::a_nonblocking_connect_ends_in_the_selector on 1,
    tcp::idle_connections_wake_nobody on 1,
    tcp::a_killed_server_leaves_nothing_behind on 1,
    tcp::all_architectures_carry_streams on 1,
    fast_open::kernel_clients_open_connections_by_their_syns on 1,
    fast_open::streams_open_connections_of_the_kernel_by_their_syns on 1,
    fast_open::the_kernel_that_does_not_take_data_gets_it_again on 1,
    capture::what_leaves_is_well_formed_to_tshark on 1,
    sending::long_replies_to_many_clients_lose_no_answer on 1,
    sending::a_megabyte_to_many_is_sent_beside_linux on 1,
    sending::what_devices_lose_is_in_the_snapshot on 1,
    sources::answers_come_from_the_address_that_was_asked on 1,
    sources::a_link_local_peer_of_a_connection_has_a_scope on 1,
    sources::an_address_that_came_later_answers_by_itself on 1,
    sources::groups_are_answered_from_the_usual_address on 1,
    sources::a_source_that_is_not_ours_is_refused on 1,
    tap::a_tap_serves_the_kernel_at_its_other_end on 1,
    tap::a_tap_is_a_host_that_is_routed_to on 1,
    tap::a_tap_that_cannot_be_is_refused on 1,
    tap_engine::the_engine_sends_long_segments_to_the_kernel on 1,
    tap_engine::the_engine_receives_long_segments_from_the_kernel on 1,
    tap_engine::the_engine_and_the_kernel_mend_what_a_link_loses on 1,
    tcp_attacks::blind_segments_do_not_reach_a_connection on 1,
    tcp_attacks::acknowledgments_of_the_unsent_start_no_storm on 1,
    tcp_attacks::spoofed_established_segments_die_in_the_driver on 1,
    tcp_attacks::clients_get_in_after_a_burst_where_the_driver_cannot_answer on 1,
    tcp_shares::closing_downloads_go_on_beside_a_blast_on_another_flow on 1,
    jumbo::segments_longer_than_a_frame_move_both_ways on 1,
    jumbo::datagrams_longer_than_a_frame_move_both_ways on 1,
    jumbo::a_flood_of_long_datagrams_keeps_no_frames on 1,
    jumbo::the_mtu_may_change_while_the_stack_runs on 1,
    jumbo::every_architecture_receives_long_packets on 1,
    long_segments::long_segments_arrive_whole_whoever_cuts_them on 1,
    long_segments::features_may_change_while_long_segments_leave on 1,
    long_segments::every_byte_is_right_whatever_happens_to_the_link on 1,
    long_segments::a_smaller_mtu_is_kept_to_at_once on 1,
    long_segments::segments_keep_their_order_behind_a_shaper on 1,
    long_segments::a_rule_that_drops_long_segments_is_counted_and_ends_with_it on 1,
    tcp_bulk::a_tap_listener_moves_bulk_data_both_ways on 1,
    tcp_bulk::a_tap_client_moves_bulk_data_both_ways_at_once on 1,
    tcp_window::a_peer_with_the_least_buffer_is_not_kept_waiting on 1,
    tcp_capture::a_clean_run_of_tcp_is_clean_to_tshark on 1,
    tcp_capture::a_clean_run_over_a_tap_is_clean_to_tshark on 1,
}

/// The process that `life` kills.
#[test]
#[ignore = "started by another test"]
fn owner() {
    life::own_until_killed();
}

/// The process that `forked` kills, and its child.
#[test]
#[ignore = "started by another test"]
fn parent() {
    forked::fork_and_own_until_killed();
}

/// The process that `tcp` kills.
#[test]
#[ignore = "started by another test"]
fn server() {
    tcp::serve_until_killed();
}
