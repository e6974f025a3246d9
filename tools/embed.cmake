# Writes a C file with the texts of wgsl/: cmake -DOUT=file.c -DFILES="a.wgsl;b.wgsl" [-DSQUEEZE=1] -P embed.cmake

set(texts "")
set(table "")
foreach(file ${FILES})
  get_filename_component(name ${file} NAME)
  string(MAKE_C_IDENTIFIER ${name} id)
  file(READ ${file} bytes HEX)
  string(REGEX REPLACE "(..)" " \\1" bytes "${bytes}")
  # Drops comments, indentation and empty lines, a third of the text.
  string(REGEX REPLACE "( 20)* 2f 2f( [1-9a-f].| 0[^a])* 0a" " 0a" bytes "${bytes}")
  string(REGEX REPLACE " 0a(( 20| 0a)+)" " 0a" bytes "${bytes}")
  if(SQUEEZE) # also the spaces around ( ) { } , ; = : * + < > & | % ! / and all but one of several, and the ends of most lines
    string(REGEX REPLACE "( 20)*( 28| 29| 7b| 7d| 2c| 3b| 3d| 3a| 2a| 2b| 3c| 3e| 26| 7c| 25| 21| 2f)( 20)*" "\\2" bytes "${bytes}")
    string(REGEX REPLACE "( 20)+" " 20" bytes "${bytes}")
    foreach(type "66 33 32/66" "75 33 32/75" "69 33 32/69" "66 31 36/68") # vec4<f32> is vec4f, and so on
      string(REGEX MATCH "(.*)/(.*)" type "${type}")
      string(REGEX REPLACE "( 76 65 63 3.| 6d 61 74 3. 78 3.) 3c ${CMAKE_MATCH_1} 3e" "\\1 ${CMAKE_MATCH_2}" bytes "${bytes}")
    endforeach()
    foreach(again 1 2) # a line that begins with # stays alone
      string(REGEX REPLACE "( 3b| 7b| 7d| 2c) 0a( [^2].| 2[^3])" "\\1\\2" bytes "${bytes}")
    endforeach()
  endif()
  string(REGEX REPLACE " (..)" "0x\\1," bytes "${bytes}")
  string(APPEND texts "static const char ${id}[] = { ${bytes}0 };\n")
  string(APPEND table "    { \"${name}\", ${id} },\n")
endforeach()
file(WRITE ${OUT} "/* Made by the build from wgsl/. */\n\n#include \"gpu/shader.h\"\n\n${texts}\nconst shader_file shader_files[] = {\n${table}    { 0, 0 },\n};\n")
