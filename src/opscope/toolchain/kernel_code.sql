-- :name architecture
-- One row per architecture of the devices: 90 is 9.0. Reads devices.
SELECT DISTINCT 10 * compute_major + compute_minor FROM devices

-- :name block
-- The threads of a block in most launches of a kernel (parameter). Reads device_activities, kernel_names.
SELECT block_x * block_y * block_z FROM device_activities JOIN kernel_names USING (name_id)
WHERE name = $1 AND block_x IS NOT NULL GROUP BY ALL ORDER BY count(*) DESC LIMIT 1
